"""The three examples, live, with what Airflow does for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress

import psutil
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.live import Live

from demo.capacity import FIRST, OTHERS, Capacity, capacity
from demo.first_hour import STREAM_TIMEOUT_S, FirstHour
from demo.pulse_watch import InstanceSummary, PulseWatch, Snapshot
from demo.services import ensure_activity, ensure_replay
from demo.steps import StepRunner, StepState, StepView
from demo.view import Addresses, DemoView, StreamRow, line, new_lines, screen, step_line
from tidemark.clock import wall_clock_ms
from tidemark.devstack import stack
from tidemark.devstack.airflow import AirflowApi
from tidemark.devstack.record import AirflowAccess
from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import ensure_user_topics
from tidemark.settings import Settings, stack_file
from tidemark.supervision.local_instances import LocalInstance, read_instances
from tidemark.topology.plan import RowSink, TopologyPlan
from tidemark.topology_loader import load

ALERTS = "alerts"
_STEPS_TIMEOUT_S = 7200.0
_DISORDER = ("--late", "0.002", "--out-of-order", "0.02", "--bad", "0.0005")


def show_demo(seconds: float | None, patients: int, *, whole: bool) -> None:
    """Start what does not run yet, and show it until it is interrupted or `seconds` have passed.

    Without a terminal, ends when counts were written; with `whole`, when all steps have run.
    """
    console = Console(emoji=False)
    began_ms = wall_clock_ms()
    access = stack.up(Settings.load()).record.airflow
    if access is None:
        raise TidemarkError("the stack runs without Airflow, which launches the streams: run `tidemark up`")
    # Loaded again: `up` has recorded the broker's address.
    settings = Settings.load()
    able = capacity(os.cpu_count() or 1, psutil.virtual_memory().total)
    # The topics of streams that are left out are created and filled, too: a user may unpause their DAGs.
    plans = {name: load(name).plan() for name in (FIRST, *OTHERS)}
    for plan in plans.values():
        ensure_user_topics(plan, settings, AdminClient(librdkafka_config(settings)))

    def start_services() -> None:
        ensure_replay(settings, ["--patients", str(patients), *_DISORDER])
        ensure_activity(settings, patients)

    def instances(topology: str) -> list[LocalInstance]:
        return read_instances(settings.var_dir, plans[topology].application_id)

    steps = StepRunner(FirstHour(AirflowApi.of(access), able, instances, start_services, began_ms).steps())
    steps.start()
    with closing(_watch(plans[FIRST], settings, began_ms)) as watch:
        demo = _Demo(_addresses(access), able, steps, watch, instances)
        if console.is_terminal:
            with suppress(KeyboardInterrupt):
                show(console, demo.view, watch, seconds, lambda: stack_file(settings.var_dir).exists())
            print_end(console, demo.view())
        else:
            until_s = seconds or (_STEPS_TIMEOUT_S if whole else STREAM_TIMEOUT_S)
            print_lines(console, demo.view, watch, until_s, whole=whole)


class _Demo:
    """Everything that a frame shows."""

    def __init__(
        self,
        addresses: Addresses,
        able: Capacity,
        steps: StepRunner,
        watch: PulseWatch,
        instances: Callable[[str], list[LocalInstance]],
    ) -> None:
        self._addresses = addresses
        self._able = able
        self._steps = steps
        self._watch = watch
        self._instances = instances

    def view(self) -> DemoView:
        """Return it as it is now. Blocks for two round trips."""
        now_ms = wall_clock_ms()
        rows = tuple(StreamRow(name, InstanceSummary.of(self._instances(name))) for name in self._able.streams)
        return DemoView(
            now_ms, self._addresses, self._steps.views(), rows, self._watch.snapshot(now_ms), self._able.reasons
        )


def _addresses(access: AirflowAccess) -> Addresses:
    return Addresses(f"{access.url}/plugin/streams", access.username, access.password_file)


def _watch(plan: TopologyPlan, settings: Settings, began_ms: int) -> PulseWatch:
    source = plan.subtopologies[0]
    counting = source.aggregations[0]
    output = next(s.sink for s in source.nodes if isinstance(s, RowSink) and s.inputs == (counting.node,))
    topics = (source.lead.topic, output.topic, ALERTS)
    grace_ms = counting.window.grace_ms if counting.window else 0
    return PulseWatch(librdkafka_config(settings), plan.application_id, topics, settings.var_dir, grace_ms, began_ms)


def show(
    console: Console, view: Callable[[], DemoView], watch: PulseWatch, seconds: float | None, is_up: Callable[[], bool]
) -> None:
    """Show one screen that updates itself, until `seconds` have passed or the stack has ended."""
    ends = None if seconds is None else time.monotonic() + seconds
    with Live(screen(view()), console=console, screen=True, auto_refresh=False) as live:
        while is_up() and (ends is None or time.monotonic() < ends):
            watch.follow(1.0)
            live.update(screen(view()), refresh=True)
    if not is_up():
        console.print("the stack was stopped; `make demo` starts it again")


def print_end(console: Console, view: DemoView) -> None:
    """Print what stays true when the screen is closed: where to look, and how far the steps have come."""
    for text in (*view.addresses.lines(), *map(step_line, view.steps)):
        console.print(text, soft_wrap=True, highlight=False)


def print_lines(
    console: Console, view: Callable[[], DemoView], watch: PulseWatch, seconds: float, *, whole: bool
) -> None:
    """Print a line for each change, until counts were written, or until all steps have run if `whole` is set.

    Raises `TidemarkError` if that does not happen within `seconds`, or if a step has failed.
    """
    ends = time.monotonic() + seconds
    now = view()
    for text in (*now.addresses.lines(), *(f"note      {note}" for note in now.notes)):
        console.print(text, soft_wrap=True, highlight=False)
    before: tuple[StepView, ...] = ()
    while time.monotonic() < ends:
        for text in new_lines(before, now.steps):
            console.print(text, soft_wrap=True, highlight=False)
        before = now.steps
        if not whole:
            console.print(line(now.patients), soft_wrap=True, highlight=False)
            if is_counting(now.patients):
                return
        elif all(step.has_ended for step in now.steps):
            console.print(line(now.patients), soft_wrap=True, highlight=False)
            _require_success(now.steps)
            return
        watch.follow(2.0)
        now = view()
    waits = next((step_line(step) for step in now.steps if step.state is StepState.NOW), "nothing")
    raise TidemarkError(f"the demo is not ready after {seconds:.0f} s, see `tidemark status`; it waits for: {waits}")


def _require_success(steps: tuple[StepView, ...]) -> None:
    failed = [step_line(step) for step in steps if step.state is StepState.FAILED]
    if failed:
        raise TidemarkError("; ".join(failed))


def is_counting(snapshot: Snapshot) -> bool:
    """Return whether counts were written since the demo began; older ones may be those of a dead instance."""
    return snapshot.counts > 0 and snapshot.fresh_updates > 0
