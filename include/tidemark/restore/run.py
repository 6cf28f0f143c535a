"""Running a restore: fence, build beside the old state, verify, swap; resumable, and undone by one command."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.broker.clients import librdkafka_config
from tidemark.broker.offsets import EndOffsets, committed_offsets
from tidemark.broker.topics import partition_counts, tasks_of
from tidemark.changelog.policy import changelog_policies
from tidemark.errors import CopyUnusable, PreflightFailed, StartRefused, StoreFailed, TaskCorrupted
from tidemark.names import TaskId, TopicPartition
from tidemark.probe import Probe
from tidemark.restore.building import StoreBuilder, StoreOpener
from tidemark.restore.fence import fenced
from tidemark.restore.listener import RestoreListener
from tidemark.restore.plans import RestorePlan, StoreRestore, TaskWays, ways_of_task
from tidemark.restore.restore import RestoreJob, Restorer, RestoreSuspended
from tidemark.restore.verify import Verdict, verify_store
from tidemark.restore.workspace import Move, RestoreProgress, RestoreState, Workspace, workspaces
from tidemark.settings import Settings
from tidemark.start.copies import CopySource, find_copies
from tidemark.start.evidence import SourceOfState, Standing, StateCopy
from tidemark.start.opening import restore_job
from tidemark.start.ways import Way
from tidemark.start.witnesses import TaskFacts, Witnesses, stalled_after
from tidemark.stores.directory import STORES_FOLDER
from tidemark.topology.plan import StoreSpec, TopologyPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What Kafka says of one task, and the copies of its stores."""

    facts: TaskFacts
    copies: Mapping[str, Sequence[StateCopy]]


@dataclass(frozen=True)
class RestoreKit:
    """What planning and running need of one application. `copies` are tried in the order of their cost."""

    plan: TopologyPlan
    settings: Settings
    admin: AdminClient
    client_config: Mapping[str, Any]
    ends: EndOffsets
    witnesses: Witnesses
    copies: Sequence[CopySource]
    clock: Callable[[], int]

    @classmethod
    def of(
        cls, plan: TopologyPlan, settings: Settings, copies: Sequence[CopySource], clock: Callable[[], int]
    ) -> RestoreKit:
        """With clients of its own. Raises `InvalidSettings`."""
        client = librdkafka_config(settings)
        admin = AdminClient(client)
        ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
        witnesses = Witnesses(plan, settings, client, ends, changelog_policies(plan), clock)
        return cls(plan, settings, admin, client, ends, witnesses, copies, clock)

    def tasks(self) -> list[TaskId]:
        """All tasks of the application. Raises `PreflightFailed` naming a topic that is missing."""
        counts = partition_counts(self.admin, self.settings)
        found: list[TaskId] = []
        for subtopology in self.plan.subtopologies:
            missing = [topic for topic in subtopology.source_topics if topic not in counts]
            if missing:
                raise PreflightFailed(
                    f"topic {missing[0]} is missing, so {self.plan.application_id} has never run here"
                )
            found += [TaskId(subtopology.index, number) for number in range(tasks_of(subtopology, counts))]
        return found

    def facts(self) -> dict[TaskId, TaskFacts]:
        """What Kafka says of all tasks. Blocks."""
        group = self.plan.application_id
        return self.witnesses.facts(
            self.tasks(), lambda partitions, timeout: committed_offsets(self.client_config, group, partitions, timeout)
        )

    def buildable(self, task: TaskId) -> dict[str, StoreSpec]:
        """Stores that a restore builds: logged, and held by RocksDB."""
        return {s.name: s for s in self.witnesses.logged_stores(task) if not s.in_memory and s.custom is None}

    def evidence(self) -> dict[TaskId, Found]:
        """All that is known of each task. Copies are asked for first: one that moves must not seem beyond its changelog."""
        tasks = self.tasks()
        copies = {task: find_copies(self.copies, task) for task in tasks}
        return {task: Found(facts, copies[task]) for task, facts in self.facts().items()}

    def ways(self, found: Found, only: SourceOfState | None, spoiled: Sequence[str] = ()) -> TaskWays | None:
        """The best ways of one task's stores, without the copies whose locations are in `spoiled`."""
        copies = {store: [c for c in held if c.location not in spoiled] for store, held in found.copies.items()}
        evidence = self.witnesses.evidence(found.facts, copies)
        return ways_of_task(evidence, list(self.buildable(found.facts.task)), only)


def make_plan(kit: RestoreKit, restore_id: str, asked: SourceOfState | None) -> RestorePlan:
    """Weigh everything, change nothing. Raises `StartRefused` where a store has no source of state."""
    stores: list[StoreRestore] = []
    standing: dict[str, dict[str, int]] = {}
    source_lag = 0
    for task, found in kit.evidence().items():
        ways = kit.ways(found, asked)
        if ways is None:
            continue
        standing[str(task)] = dict(ways.standing.next_offsets)
        source_lag += sum(
            found.facts.sources[TopicPartition(topic, task.partition)].end - offset
            for topic, offset in ways.standing.next_offsets.items()
        )
        stores += [_store_restore(task, name, way, ways.passed_over[name]) for name, way in ways.ways.items()]
    if not standing:
        raise StartRefused(f"{kit.plan.application_id} has never committed anything here: there is nothing to restore")
    return RestorePlan(
        restore_id=restore_id,
        application_id=kit.plan.application_id,
        topology_version=kit.plan.version,
        created_ms=kit.clock(),
        asked=asked,
        stores=tuple(stores),
        not_rebuilt=tuple(_not_rebuilt(kit.plan)),
        standing=standing,
        source_lag=source_lag,
    )


def _store_restore(task: TaskId, store: str, way: Way, passed_over: tuple[str, ...]) -> StoreRestore:
    return StoreRestore(
        str(task), store, way.kind, way.location, way.from_offset, way.end_offset, way.bytes_to_copy,
        round(way.eta_s, 3), passed_over,
    )  # fmt: skip


def _not_rebuilt(plan: TopologyPlan) -> list[str]:
    told: list[str] = []
    for store in plan.stores:
        if not store.is_logged:
            told.append(f"{store.name}: not logged, what it held cannot be restored")
        elif store.in_memory:
            told.append(f"{store.name}: in memory, rebuilt at every start")
        elif store.custom is not None:
            told.append(f"{store.name}: a custom store, rebuilt by the instance that opens it")
    return told


@dataclass(frozen=True)
class RestoreRun:
    """Runs one plan in its workspace. `say` is told each step in a line."""

    kit: RestoreKit
    workspace: Workspace
    listener: RestoreListener
    probe: Probe
    say: Callable[[str], None]

    def run(self) -> RestoreProgress:
        """Blocks until the new state is in place, or raises and leaves the old one where it was.

        Raises `TaskLocked` or `PreflightFailed` while the application runs, `StartRefused` when a source will not do or a
        verification fails, `RestoreSuspended` when it was aborted. After a crash it goes on where it was.
        """
        plan = self.workspace.plan()
        with self._held(plan) as progress:
            if progress.state in (RestoreState.DONE, RestoreState.ROLLED_BACK, RestoreState.ABORTED):
                raise StartRefused(f"restore {plan.restore_id} is {progress.state}; make a new plan")
            if progress.state is not RestoreState.SWAPPING:
                progress = self._build_all(
                    plan, replace(progress, state=RestoreState.BUILDING, started_ms=self.kit.clock())
                )
            self.say("swapping the verified state in")
            self.workspace.swap(progress.moves, self.probe)
            done = self.workspace.finish(progress, RestoreState.DONE)
            self._forget_earlier()
            return done

    def roll_back(self) -> RestoreProgress:
        """Bring the folders back that a finished or interrupted swap replaced. Raises `StartRefused` where there is none."""
        plan = self.workspace.plan()
        with self._held(plan) as progress:
            undoable = (RestoreState.DONE, RestoreState.SWAPPING, RestoreState.ROLLING_BACK)
            if progress.state not in undoable or not progress.moves:
                raise StartRefused(f"restore {plan.restore_id} is {progress.state}: it has replaced nothing")
            lost = [
                m
                for m in progress.moves
                if m.previous and not self._is_there(m) and progress.state is RestoreState.DONE
            ]
            if lost:
                raise StartRefused(
                    f"restore {plan.restore_id}: the folder that {lost[0].live} replaced is gone; the state now in place "
                    "is verified, go on with it"
                )
            self.workspace.write(replace(progress, state=RestoreState.ROLLING_BACK))
            self.workspace.swap_back(progress.moves)
            self.workspace.drop_built()
            return self.workspace.finish(progress, RestoreState.ROLLED_BACK)

    def _is_there(self, move: Move) -> bool:
        return (self.workspace.state_dir / move.previous).exists()

    @contextmanager
    def _held(self, plan: RestorePlan) -> Iterator[RestoreProgress]:
        kit = self.kit
        lock = self.workspace.lock()
        try:
            with fenced(kit.settings, kit.admin, plan.application_id, self.say):
                yield self.workspace.progress()
        finally:
            lock.release()

    def _build_all(self, plan: RestorePlan, progress: RestoreProgress) -> RestoreProgress:
        """Build and verify every store; the progress that says what to move. Nothing old is touched."""
        self.workspace.write(progress)
        try:
            verdicts = self._build_and_verify(plan, dict(progress.verdicts or {}))
        except RestoreSuspended:
            self.workspace.drop_built()
            self.workspace.finish(progress, RestoreState.ABORTED, "aborted; the old state is in place")
            raise
        except (OSError, StoreFailed) as error:
            self.workspace.drop_built()
            message = f"{error}; the old state is in place, free the disk and plan again"
            self.workspace.finish(progress, RestoreState.FAILED, message)
            raise StartRefused(message) from error
        except StartRefused as error:
            self.workspace.finish(progress, RestoreState.FAILED, str(error))
            raise
        moves = tuple(self.workspace.move_of(task) for task in plan.tasks)
        swapping = replace(progress, state=RestoreState.SWAPPING, verdicts=verdicts, moves=moves)
        self.workspace.write(swapping)
        return swapping

    def _build_and_verify(self, plan: RestorePlan, known: dict[str, Verdict]) -> dict[str, Verdict]:
        found = self.kit.evidence()
        wanted = {TaskId.parse(name) for name in plan.tasks}
        if not wanted <= found.keys():
            raise StartRefused("the application's partition counts have changed since the plan was made; plan again")
        opener = StoreOpener(self.kit.settings, Cache(self.kit.settings.store_cache_bytes), self.kit.clock)
        restorer = Restorer(self.kit.client_config, stalled_after(self.kit.settings), self.listener, self.probe)
        builder = StoreBuilder(opener, restorer, self.kit.copies)
        failed = threading.Event()
        verdicts: dict[str, Verdict] = {}

        def go_on() -> bool:
            return not failed.is_set() and not self.workspace.abort_file.exists()

        with ThreadPoolExecutor(self.kit.settings.restore_threads, thread_name_prefix="restore") as pool:
            futures = {
                pool.submit(self._one, builder, found[TaskId.parse(s.task)], s, known, go_on): f"{s.task}/{s.store}"
                for s in plan.stores
            }
            failure: BaseException | None = None
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    verdicts[futures[future]] = future.result()
                    self.workspace.write(replace(self.workspace.progress(), verdicts=dict(verdicts)))
                else:
                    failed.set()
                    # What failed first is the reason; the others were only stopped by it.
                    failure = failure or error
        if failure is not None:
            raise failure
        if not go_on():
            raise RestoreSuspended("aborted")
        return verdicts

    def _one(
        self,
        builder: StoreBuilder,
        found: Found,
        planned: StoreRestore,
        known: Mapping[str, Verdict],
        go_on: Callable[[], bool],
    ) -> Verdict:
        """Build one store and compare it with its changelog. Raises `StartRefused` naming the first key that differs."""
        name, facts = f"{planned.task}/{planned.store}", found.facts
        folder = self.workspace.built / planned.task / STORES_FOLDER / planned.store
        spec = self.kit.buildable(facts.task)[planned.store]
        spoiled: list[str] = []
        only: SourceOfState | None = planned.source
        while True:
            ways = self.kit.ways(found, only, spoiled)
            if ways is None:
                raise StartRefused(f"task {facts.task} has lost its history since the plan was made; plan again")
            job = restore_job(self.kit.plan, facts, spec, ways.standing, self.kit.clock())
            if name in known and self._stands(builder, folder, ways.standing):
                return known[name]
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                builder.build(facts.task, job, ways.ways[planned.store], folder, go_on)
                break
            except CopyUnusable as error:
                if self.workspace.plan().asked is not None:
                    raise StartRefused(f"store {name}: {error}; plan again without --from") from error
                self.say(f"store {name}: {error}; the next source of state is taken")
                spoiled.append(ways.ways[planned.store].location)
                only = None
        self.probe("restore-built")
        self.say(f"verifying {name} against its changelog")
        verdict = self._verify(builder, job, planned.task, folder, go_on)
        if not verdict.is_equal:
            first = verdict.examples[0]
            raise StartRefused(
                f"store {name} differs from its changelog in {verdict.different} keys, first {first.key}: changelog "
                f"{first.in_changelog}, store {first.in_store}; the old state is in place; run with --from changelog"
            )
        return verdict

    def _stands(self, builder: StoreBuilder, folder: Path, standing: Standing) -> bool:
        try:
            store = builder.opener.rocks(folder)
        except TaskCorrupted:
            return False
        try:
            marker = store.marker
        finally:
            store.close()
        return marker is not None and dict(marker.source_offsets) == dict(standing.next_offsets)

    def _verify(
        self, builder: StoreBuilder, job: RestoreJob, task: str, folder: Path, go_on: Callable[[], bool]
    ) -> Verdict:
        scratch = folder.with_name(f"{folder.name}.verify")
        scratch.mkdir(parents=True, exist_ok=True)
        store = builder.opener.rocks(folder)
        try:
            return verify_store(
                self.kit.client_config, task, job, store, scratch,
                stalled_after_s=stalled_after(self.kit.settings), go_on=go_on,
            )  # fmt: skip
        finally:
            store.close()
            shutil.rmtree(scratch, ignore_errors=True)

    def _forget_earlier(self) -> None:
        """What earlier restores replaced is of no use once this one stands."""
        for earlier in workspaces(self.workspace.state_dir, self.kit.plan.application_id):
            if earlier.folder != self.workspace.folder:
                shutil.rmtree(earlier.previous, ignore_errors=True)
                earlier.drop_built()
