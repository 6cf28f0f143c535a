"""The process of a standby: it follows changelogs, hands copies over and reports its progress until it is stopped."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.clock import wall_clock_ms
from tidemark.errors import (
    OutcomeUnknown,
    StandbyCannotFollow,
    StandbyLocked,
    StandbyOutdated,
    StartRefused,
    TaskLocked,
    TopicMissing,
)
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import task_ids
from tidemark.metrics.registry import MetricRegistry
from tidemark.queries.service import QueryService
from tidemark.recovery.facts import Witnesses
from tidemark.registry.description_watch import DescriptionWatch
from tidemark.restore.store_builder import StoreOpener
from tidemark.settings import Settings
from tidemark.standby.copies import standby_name, write_copies
from tidemark.standby.follower import Follower
from tidemark.standby.handover import Handovers
from tidemark.standby.metrics import StandbyMetrics
from tidemark.standby.placement import PlacementReport
from tidemark.standby.plan import StandbyPlan, plan_standby
from tidemark.standby.progress import CatchUpRate, PaceMeter, useless_because
from tidemark.standby.queries import StandbyStores
from tidemark.stores.directory import InstanceDirectory
from tidemark.supervision.run_file import RunFile, standby_file_path
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_REPORT_S = 1.0
_LOOK_S = 1.0
_FOLLOWS_WITHIN_S = 600.0
"""Limits the wait for an application that can be followed. After it, the process ends, to be started with the topology that
is deployed by then; a supervisor's budget of restarts allows that for ever."""

ProgressReport = Callable[[Sequence[CatchUpRate]], None]
"""Called with the pace of all copies once a second; must not block."""


def run_standby(
    plan: TopologyPlan,
    settings: Settings,
    number: int,
    topology_name: str,
    stop: threading.Event,
    report: ProgressReport,
    clock: Callable[[], int] = wall_clock_ms,
) -> None:
    """Follow until `stop` is set. Blocks. Releases everything that it opened.

    First waits while brokers are away, no instance has created the application's topics, or its state is not yet that of this
    topology. Begins again, in the same process, when the application's description names other changelogs or other tasks.
    Raises `StandbyOutdated` if the description becomes that of another state than this topology's, `StandbyCannotFollow` after
    ten minutes of waiting, `StandbyLocked` if the number is taken, `PreflightFailed`, `StartRefused`, or `OutcomeUnknown`.
    """
    app = plan.application_id
    admin = AdminClient(librdkafka_config(settings))
    name = standby_name(number)
    with _lock_is_retried(), ExitStack() as opened:
        directory = InstanceDirectory(settings.state_dir, app, name)
        opened.callback(directory.close)
        about = {"application_id": app, "topology": topology_name, "topology_version": plan.version, "instance": name}
        run_file = RunFile(standby_file_path(settings.var_dir, app, number), about)

        def ended(failure: type[BaseException] | None, *_: object) -> None:
            run_file.update({"state": "NOT_RUNNING" if failure is None else "ERROR", "since_ms": clock()}, now=True)

        opened.push(ended)
        run_file.update({"state": "CREATED", "since_ms": clock()}, now=True)
        description = _first_description(plan, settings, admin, run_file, stop)
        if description is None:
            return
        standby = _planned(description)
        handovers = Handovers(directory.folder)
        opened.callback(handovers.close)
        # Each machine numbers its standbys by itself.
        stores = StandbyStores(f"{name}@{socket.gethostname()}")
        metrics = MetricRegistry({"application": app, "instance": stores.holder})
        process = _Process(settings, admin, directory, run_file, handovers, report, clock, stores, metrics)
        while not stop.is_set():
            run_file.update({"state": "RESTORING", "since_ms": clock()}, now=True)
            process.follow(description, standby, stop)
            if description.outdated is not None and not stop.is_set():
                log.warning("the standby of %s starts following again: %s", app, description.outdated)
                description = _again(plan, settings, admin)
                standby = _planned(description)


@contextmanager
def _lock_is_retried() -> Iterator[None]:
    """Raise `StandbyLocked` for `TaskLocked`: its holder may be a command that ends soon, or a person's standby."""
    try:
        yield
    except TaskLocked as error:
        raise StandbyLocked(str(error)) from error


def _first_description(
    plan: TopologyPlan, settings: Settings, admin: AdminClient, run_file: RunFile, stop: threading.Event
) -> DescriptionWatch | None:
    """Wait until there is a description of a state that can be followed. Blocks. Returns None if `stop` is set before.

    Raises `StandbyCannotFollow` when the wait is over, and `PreflightFailed` if the topology has nothing to follow.
    """
    give_up_s = time.monotonic() + _FOLLOWS_WITHIN_S
    reported = ""
    while not stop.is_set():
        try:
            description = DescriptionWatch(plan, settings, admin)
            plan_standby(description.plan, description.partitions)
        except (OutcomeUnknown, StartRefused, TopicMissing) as error:
            why = str(error)
            if time.monotonic() >= give_up_s:
                raise StandbyCannotFollow(
                    f"the standby of {plan.application_id} has waited for {_FOLLOWS_WITHIN_S:.0f} s: {why}"
                ) from error
            if why != reported:
                log.warning("the standby of %s waits: %s", plan.application_id, why)
            run_file.update({"state": "CREATED", "useful": False, "useless_because": why}, now=why != reported)
            reported = why
            stop.wait(_LOOK_S)
        else:
            return description
    return None


def _planned(description: DescriptionWatch) -> StandbyPlan:
    """Return what to follow. Raises `PreflightFailed`."""
    standby = plan_standby(description.plan, description.partitions)
    if standby.left_out:
        log.info("not followed: %s", ", ".join(f"{store} ({why})" for store, why in standby.left_out.items()))
    return standby


def _again(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> DescriptionWatch:
    """Return the present description. Raises `StandbyOutdated` if this process's topology is of another state."""
    try:
        return DescriptionWatch(plan, settings, admin)
    except StartRefused as error:
        raise StandbyOutdated(
            f"the state of {plan.application_id} was changed, and this standby was started with version {plan.version} of the "
            f"topology: start it again with the version that runs now ({error})"
        ) from error


@dataclass(frozen=True)
class _Process:
    """The state of the process that stays when its copies are followed again."""

    settings: Settings
    admin: AdminClient
    directory: InstanceDirectory
    run_file: RunFile
    handovers: Handovers
    report: ProgressReport
    clock: Callable[[], int]
    stores: StandbyStores
    metrics: MetricRegistry

    def follow(self, description: DescriptionWatch, standby: StandbyPlan, stop: threading.Event) -> None:
        """Follow until `stop` is set or the description is outdated. Blocks."""
        self._forget_others(standby)
        client, plan = librdkafka_config(self.settings), description.plan
        ends = EndOffsets(self.admin, self.settings.broker_timeout_ms / 1000)
        witnesses = Witnesses(
            plan,
            self.settings,
            client,
            ends,
            changelog_policies(plan),
            self.clock,
            description.identities,
            kept_history={} if description.found is None else description.found.kept_history,
        )
        cache = Cache(self.settings.store_cache_bytes)
        opener = StoreOpener(self.settings, cache, self.clock)
        scrape = partial(self.metrics.scrape, StandbyMetrics(self.stores, cache).read)
        tasks = task_ids(plan, description.partitions)
        with (
            closing(Follower(witnesses, standby, self.directory, opener, description)) as follower,
            closing(QueryService(plan, self.settings, tasks, self.stores, scrape, client, self.run_file)) as queries,
        ):
            self.stores.replace(follower.stores)
            queries.start()
            meter = PaceMeter()
            placement = PlacementReport(plan.application_id, self.settings.standby_queue)
            reported_s = 0.0
            while not stop.is_set() and description.outdated is None:
                follower.step()
                self.handovers.answer(follower.store)
                if time.monotonic() - reported_s >= _REPORT_S:
                    reported_s = time.monotonic()
                    write_copies(self.directory.folder, follower.stores)
                    paces = meter.measure(follower.stores)
                    useless = useless_because(follower.stores, description.outdated, follower.asked_ms, self.clock())
                    self.run_file.update(_state(paces, _generations(standby), useless))
                    if self.settings.has_own_standby_queue:
                        self.run_file.update(placement.fields(queries.tasks_in_same_rack()))
                    self.report(paces)
            if description.outdated is not None:
                # The copies on disk are of changelogs that no instance writes any more.
                write_copies(self.directory.folder, ())
                outdated = {"state": "RESTORING", "useful": False, "useless_because": description.outdated}
                self.run_file.update(outdated, now=True)

    def _forget_others(self, standby: StandbyPlan) -> None:
        """Remove copies of tasks that the application no longer has."""
        for task in set(self.directory.task_ids()) - standby.stores.keys():
            log.info("the application no longer has task %s: its copies are removed", task)
            shutil.rmtree(self.directory.folder / str(task), ignore_errors=True)


def _generations(standby: StandbyPlan) -> dict[str, int]:
    """Return by store how often its changelog was replaced by a new one."""
    return {spec.name: spec.generation for specs in standby.stores.values() for spec in specs}


def _state(paces: Sequence[CatchUpRate], generations: Mapping[str, int], useless: str | None) -> dict[str, object]:
    """Return the fields that `tidemark status` shows."""
    return {
        "state": "RESTORING" if any(pace.lag_offsets > 0 or pace.fault for pace in paces) else "RUNNING",
        "records_per_second": round(sum(pace.records_per_second for pace in paces), 1),
        "partitions": sorted({pace.task for pace in paces}),
        "changelog_generation": max(generations.values(), default=0),
        "changelog_generations": dict(generations),
        "useful": useless is None,
        "useless_because": useless,
    }
