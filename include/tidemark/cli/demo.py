"""The patient monitoring example, live."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.live import Live

from demo.pulse_watch import PulseWatch, Snapshot
from demo.replay_service import ensure_replay
from demo.view import line, table
from tidemark.clock import wall_clock_ms
from tidemark.devstack import stack
from tidemark.devstack.airflow import AirflowApi, AirflowRefused
from tidemark.devstack.record import AirflowAccess
from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import ensure_user_topics
from tidemark.processes import wait_until
from tidemark.settings import Settings, stack_file
from tidemark.topology.plan import RowSink, TopologyPlan
from tidemark.topology_loader import load

TOPOLOGY = "patient_monitoring"
DAG_ID = f"stream__{TOPOLOGY}"
COUNTS_TIMEOUT_S = 300.0
_RUN_TIMEOUT_S = 20.0
_SILENCE_TIMEOUT_S = 60.0
T = TypeVar("T")
_DISORDER = ("--late", "0.002", "--out-of-order", "0.02", "--bad", "0.0005")


def show_demo(seconds: float | None, patients: int) -> None:
    """Start what does not run yet, and show the counts until they are interrupted or `seconds` have passed."""
    console = Console()
    began_ms = wall_clock_ms()
    access = stack.up(Settings.load()).record.airflow
    if access is None:
        raise TidemarkError("the stack runs without Airflow, which launches the stream: run `tidemark up`")
    # Loaded again: `up` has recorded the broker's address.
    settings = Settings.load()
    plan = load(TOPOLOGY).plan()
    ensure_user_topics(plan, settings, AdminClient(librdkafka_config(settings)))
    # The instance takes longest to start, so it is launched first.
    _launch(AirflowApi.of(access))
    ensure_replay(settings, ["--patients", str(patients), *_DISORDER])
    with closing(_watch(plan, settings, began_ms)) as watch:
        _greet(console, access)
        if console.is_terminal:
            with suppress(KeyboardInterrupt):
                _show(console, watch, seconds, lambda: stack_file(settings.var_dir).exists())
        else:
            _print_until_counted(console, watch, seconds or COUNTS_TIMEOUT_S)


def _watch(plan: TopologyPlan, settings: Settings, began_ms: int) -> PulseWatch:
    source = plan.subtopologies[0]
    counting = source.aggregations[0]
    output = next(s.sink for s in source.nodes if isinstance(s, RowSink) and s.inputs == (counting.node,))
    topics = (source.lead.topic, output.topic)
    grace_ms = counting.window.grace_ms if counting.window else 0
    return PulseWatch(librdkafka_config(settings), plan.application_id, topics, settings.var_dir, grace_ms, began_ms)


def _launch(api: AirflowApi) -> None:
    """Unpause the DAG, which starts a run by itself; trigger a run only if that did not happen."""
    _patiently(lambda: api.wait_for_dag(DAG_ID))
    _patiently(lambda: api.unpause(DAG_ID))

    def is_running() -> bool:
        return any(run["state"] in {"queued", "running"} for run in _patiently(lambda: api.runs(DAG_ID)))

    if not wait_until(is_running, _RUN_TIMEOUT_S, every_s=0.5):
        _patiently(lambda: api.trigger(DAG_ID))


def _patiently(call: Callable[[], T]) -> T:
    """Call until Airflow answers, as all services start at once here, and a small machine is slow meanwhile."""
    answers: list[T] = []

    def has_answered() -> bool:
        try:
            answers.append(call())
        except AirflowRefused as refused:
            if refused.status != 0:
                raise
        return bool(answers)

    return answers[0] if wait_until(has_answered, _SILENCE_TIMEOUT_S, every_s=0.5) else call()


def _greet(console: Console, access: AirflowAccess) -> None:
    console.print(f"Airflow   {access.url}/dags/{DAG_ID}", soft_wrap=True)
    console.print(f"login     {access.username}, password in {access.password_file}", soft_wrap=True)
    console.print("commands  tidemark status | tidemark kafka … | make stop", soft_wrap=True)


def _show(console: Console, watch: PulseWatch, seconds: float | None, is_up: Callable[[], bool]) -> None:
    ends = None if seconds is None else time.monotonic() + seconds
    with Live(table(watch.snapshot(wall_clock_ms())), console=console, auto_refresh=False) as live:
        while is_up() and (ends is None or time.monotonic() < ends):
            watch.follow(1.0)
            live.update(table(watch.snapshot(wall_clock_ms())), refresh=True)
    if not is_up():
        console.print("the stack was stopped; `make demo` starts it again")


def _print_until_counted(console: Console, watch: PulseWatch, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        watch.follow(2.0)
        snapshot = watch.snapshot(wall_clock_ms())
        console.print(line(snapshot), soft_wrap=True, highlight=False)
        if is_counting(snapshot):
            return
    raise TidemarkError(
        f"no counts after {seconds:.0f} s: look at `tidemark status` and at the log of the task `instance` of {DAG_ID}"
    )


def is_counting(snapshot: Snapshot) -> bool:
    """Return whether counts were written since the demo began; older ones may be those of a dead instance."""
    return snapshot.counts > 0 and snapshot.fresh_updates > 0
