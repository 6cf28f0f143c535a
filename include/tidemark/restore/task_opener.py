"""Opening of assigned tasks: gather the evidence, plan the start, restore the stores.

See invariants: end of a restore, fresh only when nothing exists, two retentions, store checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidemark.commit.takeover import Takeover
from tidemark.errors import CopyUnusable, StartRefused
from tidemark.kafka.member import Member
from tidemark.kafka.record_sizes import SizeLimits
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.copy_source import find_copies
from tidemark.recovery.evidence import CommittedProgress, StateCopy, Watermarks
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import (
    Fresh,
    Refuse,
    Resume,
    committed_progress_of,
    is_decided_by_lost_writes,
    plan_start,
    unlogged_fault,
)
from tidemark.restore.folder_rank import rank_folder
from tidemark.restore.parallel import side_by_side
from tidemark.restore.restorer import RestoreJob
from tidemark.restore.store_builder import StoreBuilder, StoreOpener
from tidemark.restore.unlogged_stores import GroupFault
from tidemark.settings import Settings
from tidemark.stores.directory import FolderRank, InstanceDirectory, TaskDirectory, unranked
from tidemark.stores.protocol import Store
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.tasks.sink_records import ValueWriter
from tidemark.tasks.task import Task, changelog_of, close_tasks
from tidemark.tasks.values import first_live_segment, value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """A partition that the consumer group assigned to this instance, and the epoch of the assignment."""

    task: TaskId
    partition: TopicPartition
    epoch: int


@dataclass(frozen=True)
class OpenedTask:
    """An open task.

    If `is_fresh`, its start offsets are still to be committed (see invariant: fresh only when nothing exists).
    """

    task: Task
    is_fresh: bool


class LostWrites:
    """The searches for what shortened changelogs have lost, for tasks that are opened together, in several threads.

    Tasks of one partition have their commits in one partition of the commits topic. It is searched once for all of them, as
    soon as one needs it.
    """

    def __init__(self, witnesses: Witnesses, facts: Mapping[TaskId, TaskFacts]) -> None:
        self._witnesses = witnesses
        self._facts = facts
        self._locks = {task.partition: threading.Lock() for task in facts}
        self._found: dict[TaskId, TaskFacts] = {}

    def facts_of(self, task: TaskId) -> TaskFacts:
        """Return the facts of a task with `lost_until_ms`. Blocks; raises `OutcomeUnknown`."""
        with self._locks[task.partition]:
            if task not in self._found:
                own = {each: facts for each, facts in self._facts.items() if each.partition == task.partition}
                self._found |= self._witnesses.with_lost_writes(own)
            return self._found[task]


@dataclass(frozen=True)
class TaskOpener:
    """Opens the tasks of one instance, several at the same time."""

    plan: TopologyPlan
    settings: Settings
    directory: InstanceDirectory
    member: Member
    witnesses: Witnesses
    opener: StoreOpener
    builder: StoreBuilder
    sink_partitions: Mapping[str, int]
    limits: SizeLimits
    writers: Mapping[str, ValueWriter]
    takeover: Takeover
    number: int

    def open(
        self, assignments: Sequence[Assignment], should_continue: Callable[[Assignment], bool]
    ) -> list[OpenedTask]:
        """Open all tasks, or raise and leave none open.

        Blocks until every store is up to date with the last commit. Raises `StartRefused`, `OutcomeUnknown`,
        `TaskLocked`, or `RestoreSuspended` when `should_continue` returns False for a task. When a task is refused, the others'
        restores are suspended, so that the refusal is raised at once.
        """
        # Standbys advance all the time: they are asked first, so that no copy seems to be beyond the ends that are read
        # next.
        elsewhere = find_copies(self.builder.copies, [a.task for a in assignments])
        self.takeover.of_dead_owners([a.task for a in assignments], self.number)
        facts = self.witnesses.facts_for_local_stores([a.task for a in assignments])
        lost_writes = LostWrites(self.witnesses, facts)
        opened: list[OpenedTask] = []
        is_refused = threading.Event()

        def goes_on(a: Assignment) -> bool:
            return not is_refused.is_set() and should_continue(a)

        def open_one(a: Assignment) -> OpenedTask:
            done = self._open_one(a, facts[a.task], lost_writes, elsewhere[a.task], partial(goes_on, a))
            opened.append(done)
            return done

        def stop_others(error: BaseException) -> None:
            # After any other error the instance starts again by itself, and would build unfinished stores from the beginning.
            if isinstance(error, StartRefused):
                is_refused.set()

        try:
            return side_by_side(open_one, assignments, self.settings.restore_threads, on_failure=stop_others)
        except BaseException:
            close_tasks(done.task for done in opened)
            raise

    def _open_one(
        self,
        assignment: Assignment,
        facts: TaskFacts,
        lost_writes: LostWrites,
        elsewhere: Mapping[str, Sequence[StateCopy]],
        should_continue: Callable[[], bool],
    ) -> OpenedTask:
        directory = self.directory.open_task(assignment.task, rank=self._rank_of(facts))
        stores: dict[str, Store] = {}
        try:
            for spec in self.plan.subtopologies[assignment.task.subtopology].stores:
                stores[spec.name] = self.opener.open(directory.store_path(spec.name), spec)
            copies = self._copies(assignment.task, directory, stores, elsewhere)
            committed, is_fresh = self._bring_level(facts, lost_writes, directory, stores, copies, should_continue)
            task = Task(
                application_id=self.plan.application_id,
                topology_version=self.plan.version,
                task_id=assignment.task,
                epoch=assignment.epoch,
                subtopology=self.plan.subtopologies[assignment.task.subtopology],
                stores=stores,
                directory=directory,
                next_offsets=committed.next_offsets,
                stream_times=committed.stream_times,
                batch=committed.batch,
                sink_partitions=self.sink_partitions,
                wall_ms=self.witnesses.clock(),
                offsets_ms=facts.offsets_ms,
                sql_memory_bytes=self.settings.sql_memory_bytes,
                limits=self.limits,
                writers=self.writers,
            )
        except BaseException:
            for store in stores.values():
                store.close()
            directory.close()
            raise
        return OpenedTask(task, is_fresh)

    def _rank_of(self, facts: TaskFacts) -> Callable[[Path], FolderRank]:
        """Return the function that ranks the folders of a task; none is judged if it is not known what is committed."""
        committed = committed_progress_of(self.witnesses.evidence(facts, {}))
        if not isinstance(committed, CommittedProgress):
            return unranked
        return partial(rank_folder, self.opener, self.plan.subtopologies[facts.task.subtopology], facts, committed)

    def _bring_level(
        self,
        facts: TaskFacts,
        lost_writes: LostWrites,
        directory: TaskDirectory,
        stores: dict[str, Store],
        copies: dict[str, list[StateCopy]],
        should_continue: Callable[[], bool],
    ) -> tuple[CommittedProgress, bool]:
        """Replace or advance `stores` until they are up to date with Kafka.

        Return what is committed, and whether the task is fresh.
        """
        plan = self._plan(facts, lost_writes, copies)
        subtopology = self.plan.subtopologies[facts.task.subtopology]
        if isinstance(plan, Fresh):
            fresh = CommittedProgress(plan.next_offsets, -1, StreamTimes.none())
            for group in subtopology.unlogged_groups:
                if any(stores[spec.name].checkpoint is not None for spec in group):
                    self._keep_or_empty(facts, group, directory, stores, fresh)
            return fresh, True
        for group in subtopology.unlogged_groups:
            self._keep_or_empty(facts, group, directory, stores, plan.committed)
        for spec in subtopology.stores:
            if not spec.is_logged:
                continue
            folder, store = directory.store_path(spec.name), stores[spec.name]
            job = restore_job(self.plan, facts, spec, plan.committed, self.witnesses.clock())
            while True:
                candidate = plan.stores[spec.name]
                building = directory.restoring_path(spec.name)
                try:
                    stores[spec.name] = self.builder.bring_level(
                        facts.task, job, candidate, store, folder, building, should_continue
                    )
                    break
                except CopyUnusable as error:
                    log.warning("task %s: %s; the next source of state is tried", facts.task, error)
                    shutil.rmtree(building, ignore_errors=True)
                    copies[spec.name] = [copy for copy in copies[spec.name] if copy is not candidate.copy]
                    store = stores[spec.name] = self.opener.open(folder, spec)
                    plan = self._plan(facts, lost_writes, copies)
                    if isinstance(plan, Fresh):
                        raise StartRefused(
                            f"task {facts.task}: its commit record and offsets disappeared while it was restored; "
                            "start it again"
                        ) from error
        return plan.committed, False

    def _plan(
        self, facts: TaskFacts, lost_writes: LostWrites, copies: Mapping[str, Sequence[StateCopy]]
    ) -> Fresh | Resume:
        found = self.witnesses.evidence(facts, copies)
        plan = plan_start(found)
        if is_decided_by_lost_writes(found, plan):
            plan = plan_start(self.witnesses.evidence(lost_writes.facts_of(facts.task), copies))
        log.info("start plan: task=%s plan=%s", facts.task, plan)
        if isinstance(plan, Refuse):
            raise StartRefused(f"{plan.reason}; {plan.remedy}")
        return plan

    def _copies(
        self,
        task: TaskId,
        directory: TaskDirectory,
        stores: Mapping[str, Store],
        elsewhere: Mapping[str, Sequence[StateCopy]],
    ) -> dict[str, list[StateCopy]]:
        """Return the copies in this instance's folder, and of RocksDB stores also those elsewhere."""
        copies: dict[str, list[StateCopy]] = {}
        for spec in self.plan.subtopologies[task.subtopology].stores:
            checkpoint = stores[spec.name].checkpoint
            location = str(directory.store_path(spec.name))
            copies[spec.name] = [] if checkpoint is None else [StateCopy(SourceOfState.LOCAL, checkpoint, location)]
            if spec.is_rocksdb:
                copies[spec.name] += elsewhere.get(spec.name, [])
        return copies

    def _keep_or_empty(
        self,
        facts: TaskFacts,
        group: Sequence[StoreSpec],
        directory: TaskDirectory,
        stores: dict[str, Store],
        committed: CommittedProgress,
    ) -> None:
        """Replace stores without a changelog by empty ones, unless all of the group are up to date with the last commit."""
        task = facts.task
        layouts = value_layouts(self.plan.subtopologies[task.subtopology])

        def fault_in(spec: StoreSpec) -> str | None:
            signature = value_signature(spec, layouts[spec.name])
            return unlogged_fault(stores[spec.name].checkpoint, signature, committed, facts.record)

        fault = GroupFault.first(group, fault_in)
        if fault is None:
            return
        for spec in group:
            log.warning(
                "store %s of task %s has no changelog, and %s: it starts empty; its earlier contents cannot be restored",
                spec.name,
                task,
                fault.of(spec),
            )
            stores[spec.name].close()
            shutil.rmtree(directory.store_path(spec.name), ignore_errors=True)
            stores[spec.name] = self.opener.open(directory.store_path(spec.name), spec)


def restore_job(
    plan: TopologyPlan, facts: TaskFacts, spec: StoreSpec, committed: CommittedProgress, now_ms: int
) -> RestoreJob:
    """Return what a restore of one store to `committed` needs.

    A changelog that is a source topic counts only up to the committed offset (see invariant: source topic as
    changelog).
    """
    layout = value_layouts(plan.subtopologies[facts.task.subtopology])[spec.name]
    changelog: Watermarks = facts.changelogs[spec.name]
    return job_to(
        plan,
        facts.task,
        spec,
        changelog.low,
        StoreCheckpoint(
            application_id=plan.application_id,
            topology_version=plan.version,
            store=spec.name,
            value_layout=value_signature(spec, layout),
            batch=committed.batch,
            commit_time_ms=now_ms,
            source_offsets=dict(committed.next_offsets),
            stream_time_ms=committed.stream_times.of(spec.name),
            changelog_offset=changelog.end if spec.source_topic is None else committed.next_offsets[spec.source_topic],
        ),
    )


def job_to(plan: TopologyPlan, task: TaskId, spec: StoreSpec, low_offset: int, target: StoreCheckpoint) -> RestoreJob:
    """Return what a restore of one store to the checkpoint `target` needs. Its changelog begins at `low_offset`."""
    layout = value_layouts(plan.subtopologies[task.subtopology])[spec.name]
    return RestoreJob(
        spec=spec,
        changelog=TopicPartition(changelog_of(plan.application_id, spec), task.partition),
        low_offset=low_offset,
        target=target,
        value_bytes=None if layout is None else layout.value_bytes,
        first_live_segment=first_live_segment(spec, target.stream_time_ms),
        layout=layout,
    )
