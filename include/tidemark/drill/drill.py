"""A restore drill: rebuild every task elsewhere while the application runs, and compare key by key.

The application itself is not changed: it is asked for two savepoints, its changelogs are read, and everything is built
below `<state_dir>/.drills/<application_id>`, which is empty again afterwards.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidemark.drill.comparison import StoreComparator, distance
from tidemark.drill.follow import DrillFollower
from tidemark.drill.rebuild import Built, DrillRebuilder, SavedState, saved_states
from tidemark.errors import CopyUnusable, PreflightFailed, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.kafka.cluster import topic_configs
from tidemark.names import DRILLS_FOLDER, TaskId
from tidemark.operations.context import OperationContext
from tidemark.operations.disk_space import require_room_to_drill
from tidemark.operations.drill_history.rates import rates_of
from tidemark.operations.drill_history.report import (
    DrillReport,
    MethodDrill,
    RebuildMethod,
    StoreDrill,
    is_drillable,
    not_compared,
)
from tidemark.operations.savepoint import SavepointCommand
from tidemark.operations.workspace import new_id
from tidemark.recovery.candidates import RecoveryCandidate as StoreWay
from tidemark.restore.bounds import Keeping
from tidemark.restore.listener import RestoreListener
from tidemark.restore.parallel import side_by_side
from tidemark.savepoints.repository import SavepointRepository
from tidemark.supervision.live_instances import live_instances

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class DrillOptions:
    """When following ends: rebuilt tasks follow until the application has committed so many batches, or time is over."""

    follow_batches: int = 3
    follow_timeout_s: float = 120.0


@dataclass(frozen=True)
class Drill:
    """One drill of a running application. `report` is called with a line for each step."""

    context: OperationContext
    options: DrillOptions
    listener: RestoreListener
    report: Callable[[str], None]
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> DrillReport:
        """Run the drill. Blocks. Faults of the state are in the report.

        Raises `PreflightFailed` if the application is not running here or the disk is too small, `TaskLocked` while
        another drill of it is running, `SavepointFailed`, `OutcomeUnknown`.
        """
        context, clients, app = self.context, self.context.clients, self.context.plan.application_id
        if not live_instances(clients.settings.var_dir, app):
            raise PreflightFailed(
                f"no instance of {app} is running on this machine: a drill compares with a running application; unpause its DAG"
            )
        drill_id, started_ms = new_id(), clients.clock()
        repository = SavepointRepository(clients.settings.savepoint_location, app)
        with self._folder(drill_id) as folder:
            rebuilder = DrillRebuilder(context, repository, folder, self.listener, lambda: not self._stop.is_set())
            course = _Course(self, repository, rebuilder)
            course.go()
        return DrillReport(
            drill_id=drill_id,
            application_id=app,
            topology_version=context.plan.version,
            guarantee=context.plan.guarantee,
            started_ms=started_ms,
            ended_ms=clients.clock(),
            savepoints=tuple(course.savepoints),
            stores=tuple(course.stores),
            ways=tuple(course.ways),
            followed_batches=course.followed_batches,
            follow_batches=self.options.follow_batches,
            not_compared=not_compared(context.plan),
            rates=rates_of(course.stores, rebuilder.fetched),
        )

    @contextmanager
    def _folder(self, drill_id: str) -> Iterator[Path]:
        """Provide the drill's own folder, which is deleted afterwards, with whatever a killed drill has left."""
        settings, app = self.context.clients.settings, self.context.plan.application_id
        drills = settings.state_dir / DRILLS_FOLDER / app
        try:
            lock = FolderLock(drills)
        except TaskLocked as error:
            raise TaskLocked(f"another drill of {app} is running: wait for it ({error})") from error
        with lock:
            for left in (path for path in drills.iterdir() if path.is_dir()):
                shutil.rmtree(left, ignore_errors=True)
            folder = drills / drill_id
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the work for all items, several at a time. Returns the results in the items' order.

        The first error ends the drill.
        """
        threads = self.context.clients.settings.restore_threads
        return side_by_side(work, items, threads, on_failure=lambda _: self._stop.set())


class _Course:
    """The steps of one drill, and what they have found so far."""

    def __init__(self, drill: Drill, repository: SavepointRepository, rebuilder: DrillRebuilder) -> None:
        self._drill = drill
        self._context = drill.context
        self._repository = repository
        self._rebuilder = rebuilder
        self.savepoints: list[str] = []
        self.stores: list[StoreDrill] = []
        self.ways: list[MethodDrill] = []
        self.followed_batches = 0

    def go(self) -> None:
        """Do every step in order; none if a savepoint would not hold any store."""
        if not is_drillable(self._context.plan):
            return
        older = self._newest_savepoint()
        first = self._take_savepoint()
        if not first:
            self._drill.report("the savepoint contains no store yet: there is nothing to rebuild")
            return
        self._require_room(first)
        scales = StoreComparator(self._rebuilder, self._keepings(first))
        built = self._whole(first, scales)
        tails = self._tails(older, first)
        if tails:
            self._by_savepoint(first, tails, scales)
        followed = self._follow(first, built, scales)
        if not tails:
            self._drill.report("there is no older savepoint that can be used: the drill's first one takes its place")
            self._by_savepoint(followed, self._tails(first, followed), scales)

    def _newest_savepoint(self) -> list[SavedState]:
        """Return the newest readable savepoint that existed before the drill."""
        for savepoint_id in self._repository.newest_first(self._context.clients.clock()):
            try:
                return saved_states(self._context.evidence, self._repository, savepoint_id)
            except CopyUnusable as error:
                self._drill.report(f"a savepoint is skipped: {error}")
        return []

    def _take_savepoint(self) -> list[SavedState]:
        context = self._context
        clients, tasks = context.clients, context.evidence.tasks()
        command = SavepointCommand(
            context.plan, clients.settings, clients.admin, tasks, lambda _copied: None, clients.clock
        )
        taken = command.take()
        savepoint_id = taken.manifest.savepoint_id
        self._drill.report(f"savepoint {savepoint_id} taken, the stream was paused for {taken.held_ms} ms")
        self.savepoints.append(savepoint_id)
        states = saved_states(context.evidence, self._repository, savepoint_id)
        running = {state.copy.checkpoint.topology_version for state in states} - {context.plan.version}
        if running:
            raise PreflightFailed(
                f"{context.plan.application_id} runs version {running.pop()} of the topology, but this is version "
                f"{context.plan.version}: relaunch it, or drill with the running version"
            )
        return states

    def _require_room(self, states: Sequence[SavedState]) -> None:
        """Check the room, because the application writes to the same disk. Raises `PreflightFailed`."""
        evidence = self._context.evidence
        saved_bytes = {state.name: state.copy.bytes_to_copy for state in states}
        require_room_to_drill(evidence.witnesses, evidence.facts(), self._rebuilder.folder.parent, saved_bytes)

    def _keepings(self, states: Sequence[SavedState]) -> Mapping[str, Keeping]:
        """Return what changelogs are configured to keep, by topic."""
        topics = sorted({self._context.evidence.witnesses.changelog_of(s.task, s.spec).topic for s in states})
        configs = topic_configs(self._context.clients.admin, topics, self._context.clients.settings)
        known = self._context.evidence.witnesses.kept_history
        return {topic: Keeping.of(topic, configs[topic], known.get(topic)) for topic in topics}

    def _whole(self, states: Sequence[SavedState], scales: StoreComparator) -> dict[tuple[TaskId, str], Built]:
        self._drill.report(f"rebuilding {len(states)} stores from their changelogs")
        rebuilder, facts = self._rebuilder, self._context.evidence.facts()
        started_ms = self._context.clients.clock()
        built = self._drill.each(
            lambda s: rebuilder.whole(RebuildMethod.CHANGELOG.name, s, facts[s.task].changelogs[s.spec.name]), states
        )
        self._reached(RebuildMethod.CHANGELOG, states, started_ms)
        self._compare(RebuildMethod.CHANGELOG, list(zip(states, built, strict=True)), scales)
        return {state.name: one for state, one in zip(states, built, strict=True)}

    def _tails(self, older: Sequence[SavedState], states: Sequence[SavedState]) -> list[tuple[SavedState, StoreWay]]:
        """Return the source of every store from an older savepoint; nothing if one of them has none without a fault."""
        by_name = {state.name: state for state in older}
        facts = self._context.evidence.facts()
        found: list[tuple[SavedState, StoreWay]] = []
        for state in states:
            base = by_name.get(state.name)
            if base is None:
                return []
            way = self._rebuilder.tail_of(base, state, facts[state.task])
            if way.fault is not None:
                self._drill.report(f"store {state.task}/{state.spec.name}: {way.fault}")
                return []
            found.append((state, way))
        return found

    def _by_savepoint(
        self, states: Sequence[SavedState], tails: Sequence[tuple[SavedState, StoreWay]], scales: StoreComparator
    ) -> None:
        self._drill.report(f"rebuilding {len(tails)} stores from a savepoint and the changelog's tail")
        rebuilder, facts = self._rebuilder, self._context.evidence.facts()
        started_ms = self._context.clients.clock()
        built = self._drill.each(
            lambda tail: rebuilder.from_savepoint(
                RebuildMethod.SAVEPOINT.name, tail[0], tail[1], facts[tail[0].task].changelogs[tail[0].spec.name]
            ),
            tails,
        )
        self._reached(RebuildMethod.SAVEPOINT, states, started_ms)
        self._compare(RebuildMethod.SAVEPOINT, [(tail[0], one) for tail, one in zip(tails, built, strict=True)], scales)
        rebuilder.forget(RebuildMethod.SAVEPOINT.name)

    def _follow(
        self, states: Sequence[SavedState], built: Mapping[tuple[TaskId, str], Built], scales: StoreComparator
    ) -> list[SavedState]:
        """Let the rebuilt stores follow, take the second savepoint, and compare with it. Returns its states."""
        options = self._drill.options
        committed = [state for state in states if built[state.name].fault is None]
        self._drill.report(f"following the changelogs for {options.follow_batches} batches")
        follower = DrillFollower(self._rebuilder, RebuildMethod.CHANGELOG.name, committed, self._drill.each)
        self.followed_batches = follower.run(options.follow_batches, options.follow_timeout_s)
        self._rebuilder.forget(states[0].savepoint_id)
        second = self._take_savepoint()
        ends = {state.name: state for state in second}
        started_ms = self._context.clients.clock()
        followed = follower.finish([ends[state.name] for state in committed])
        self._reached(RebuildMethod.FOLLOWED, second, started_ms)
        self._compare(RebuildMethod.FOLLOWED, followed, scales, kind=RebuildMethod.CHANGELOG.name)
        return second

    def _reached(self, way: RebuildMethod, states: Sequence[SavedState], started_ms: int) -> None:
        """Note that every store is rebuilt: how long that took, and how far the application is by now."""
        rto_s = (self._context.clients.clock() - started_ms) / 1000
        offsets, seconds = distance(states, self._context.evidence.current_offsets())
        self.ways.append(MethodDrill(way, rto_s, offsets, seconds))

    def _compare(
        self,
        way: RebuildMethod,
        built: Sequence[tuple[SavedState, Built]],
        scales: StoreComparator,
        kind: str | None = None,
    ) -> None:
        found = self._drill.each(lambda one: scales.weigh(way, kind or way.name, one[0], one[1]), built)
        for store in found:
            self._drill.report(f"{store.task}/{store.store} by {way}: {store.verdict}: {store.message}")
        self.stores += found
