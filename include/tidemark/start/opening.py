"""From an assigned partition to an open task: gather the evidence, plan, restore (rules 1, 4, 11, 12)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from rocksdict import Cache

from tidemark.broker.offsets import EndOffsets
from tidemark.changelog.policy import ChangelogPolicy
from tidemark.commit.history import last_commit_records
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.errors import OutcomeUnknown, StartRefused, TaskCorrupted
from tidemark.membership.member import Member
from tidemark.names import TaskId, TopicPartition, changelog_topic
from tidemark.restore.restore import RestoreJob, Restorer
from tidemark.settings import Settings
from tidemark.start.plan import (
    CopyKind,
    Fresh,
    Refuse,
    ReplayTail,
    Standing,
    StateCopy,
    StoreEvidence,
    StorePlan,
    TaskEvidence,
    UseReady,
    Watermarks,
    plan_start,
)
from tidemark.stores.directory import InstanceDirectory, TaskDirectory
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.stores.marker import NO_STREAM_TIME, Marker
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store
from tidemark.stores.rocksdb import RocksStore
from tidemark.tasks.task import Task, first_live_segment
from tidemark.topology.plan import Aggregation, SubTopology, TopologyPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """A partition that the group gave us, and the epoch of that."""

    task: TaskId
    partition: TopicPartition
    epoch: int


@dataclass(frozen=True)
class OpenedTask:
    """`is_fresh`: its start offsets are yet to be committed (rule 4)."""

    task: Task
    is_fresh: bool


@dataclass(frozen=True)
class TaskOpener:
    """Opens the tasks of one instance, several side by side. `clock` gives epoch milliseconds."""

    plan: TopologyPlan
    settings: Settings
    client_config: Mapping[str, Any]
    directory: InstanceDirectory
    member: Member
    ends: EndOffsets
    restorer: Restorer
    policies: Mapping[str, ChangelogPolicy]
    cache: Cache
    clock: Callable[[], int]

    def open(self, assignments: Sequence[Assignment], go_on: Callable[[Assignment], bool]) -> list[OpenedTask]:
        """Open all, or raise and leave none open.

        Blocks until every store is level with Kafka. Raises `StartRefused`, `OutcomeUnknown`, `TaskLocked`, or
        `RestoreSuspended` when `go_on` says no for a task.
        """
        stalled_after_s = stalled_after(self.settings)
        partitions = [a.partition for a in assignments]
        try:
            committed = self.member.committed(partitions, stalled_after_s)
        except KafkaException as error:
            raise OutcomeUnknown(f"the group's committed offsets cannot be read: {error}") from error
        records = last_commit_records(
            self.client_config,
            self.ends,
            self.plan.application_id,
            [a.task for a in assignments],
            stalled_after_s=stalled_after_s,
        )
        lows, ends = self.ends.beginnings(partitions), self.ends.of(partitions)
        opened: list[OpenedTask] = []
        with ThreadPoolExecutor(self.settings.restore_threads, thread_name_prefix="restore") as pool:
            futures = [
                pool.submit(
                    self._open_one,
                    assignment,
                    committed.get(assignment.partition),
                    records.get(assignment.task),
                    Watermarks(lows[assignment.partition], ends[assignment.partition]),
                    partial(go_on, assignment),
                )
                for assignment in assignments
            ]
            failure: BaseException | None = None
            for future in futures:
                failed = future.exception()
                if failed is None:
                    opened.append(future.result())
                else:
                    failure = failure or failed
        if failure is not None:
            for done in opened:
                done.task.close()
            raise failure
        return opened

    def _open_one(
        self,
        assignment: Assignment,
        committed: ClientPartition | None,
        record: CommitRecord | None,
        source: Watermarks,
        go_on: Callable[[], bool],
    ) -> OpenedTask:
        subtopology = self.plan.subtopologies[assignment.task.subtopology]
        directory = self.directory.open_task(assignment.task)
        stores: dict[str, Store] = {}
        try:
            changelogs = self._changelog_watermarks(assignment, subtopology)
            for aggregation in subtopology.aggregations:
                stores[aggregation.store.name] = self._open_store(directory, aggregation)
            plan = plan_start(
                self._evidence(assignment, subtopology, directory, stores, changelogs, committed, record, source)
            )
            log.info("start plan: task=%s plan=%s", assignment.task, plan)
            if isinstance(plan, Refuse):
                raise StartRefused(f"{plan.reason}; {plan.remedy}")
            if isinstance(plan, Fresh):
                standing = Standing(plan.next_offset, -1, NO_STREAM_TIME)
            else:
                standing = plan.standing
                for aggregation in subtopology.aggregations:
                    name = aggregation.store.name
                    stores[name] = self._bring_level(
                        assignment,
                        aggregation,
                        directory,
                        stores[name],
                        plan.stores[name],
                        standing,
                        changelogs[name],
                        go_on,
                    )
        except BaseException:
            for store in stores.values():
                store.close()
            directory.close()
            raise
        task = Task(
            application_id=self.plan.application_id,
            topology_version=self.plan.version,
            task_id=assignment.task,
            epoch=assignment.epoch,
            subtopology=subtopology,
            stores=stores,
            directory=directory,
            next_offset=standing.next_offset,
            stream_time_ms=standing.stream_time_ms,
            batch=standing.batch,
        )
        return OpenedTask(task, isinstance(plan, Fresh))

    def _open_store(self, directory: TaskDirectory, aggregation: Aggregation) -> Store:
        if aggregation.store.in_memory:
            return MemoryStore()
        folder = directory.store_path(aggregation.store.name)
        try:
            return self._rocks(folder)
        except TaskCorrupted as error:
            broken = folder.with_name(f"{folder.name}.corrupt-{self.clock()}")
            log.warning("%s; moved to %s, the state is rebuilt from its changelog", error, broken)
            folder.rename(broken)
            return self._rocks(folder)

    def _rocks(self, folder: Path) -> RocksStore:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return RocksStore(folder, write_buffer_bytes=self.settings.store_write_buffer_bytes, cache=self.cache)

    def _changelog_watermarks(self, assignment: Assignment, subtopology: SubTopology) -> dict[str, Watermarks]:
        partition_of = {
            a.store.name: TopicPartition(
                changelog_topic(self.plan.application_id, a.store.name), assignment.task.partition
            )
            for a in subtopology.aggregations
        }
        lows = self.ends.beginnings(list(partition_of.values()))
        ends = self.ends.of(list(partition_of.values()))
        return {name: Watermarks(lows[partition], ends[partition]) for name, partition in partition_of.items()}

    def _evidence(
        self,
        assignment: Assignment,
        subtopology: SubTopology,
        directory: TaskDirectory,
        stores: Mapping[str, Store],
        changelogs: Mapping[str, Watermarks],
        committed: ClientPartition | None,
        record: CommitRecord | None,
        source: Watermarks,
    ) -> TaskEvidence:
        found: list[StoreEvidence] = []
        for aggregation in subtopology.aggregations:
            name = aggregation.store.name
            marker = stores[name].marker
            location = str(directory.store_path(name))
            policy = self.policies[name]
            found.append(
                StoreEvidence(
                    store=name,
                    value_layout=ValueLayout(slots_of(aggregation.aggregates)).signature,
                    copies=() if marker is None else (StateCopy(CopyKind.LOCAL, marker, location),),
                    changelog=TopicPartition(
                        changelog_topic(self.plan.application_id, name), assignment.task.partition
                    ),
                    changelog_watermarks=changelogs[name],
                    delete_retention_ms=policy.delete_retention_ms,
                    store_retention_ms=aggregation.store.retention_ms,
                    changelog_retention_ms=policy.retention_ms,
                )
            )
        fresh_offset = source.low if self.settings.auto_offset_reset == "earliest" else source.end
        return TaskEvidence(
            application_id=self.plan.application_id,
            task=assignment.task,
            source=assignment.partition,
            committed_offset=None if committed is None else committed.offset,
            committed_metadata=None if committed is None else OffsetMetadata.decode(committed.metadata),
            last_record=record,
            source_watermarks=source,
            fresh_offset=fresh_offset,
            stores=tuple(found),
            now_ms=self.clock(),
        )

    def _bring_level(
        self,
        assignment: Assignment,
        aggregation: Aggregation,
        directory: TaskDirectory,
        store: Store,
        plan: StorePlan,
        standing: Standing,
        changelog: Watermarks,
        go_on: Callable[[], bool],
    ) -> Store:
        if isinstance(plan, UseReady):
            return store
        layout = ValueLayout(slots_of(aggregation.aggregates))
        name = aggregation.store.name
        job = RestoreJob(
            spec=aggregation.store,
            changelog=TopicPartition(changelog_topic(self.plan.application_id, name), assignment.task.partition),
            from_offset=plan.from_offset,
            target=Marker(
                application_id=self.plan.application_id,
                topology_version=self.plan.version,
                store=name,
                value_layout=layout.signature,
                batch=standing.batch,
                commit_time_ms=self.clock(),
                source_offsets={assignment.partition.topic: standing.next_offset},
                stream_time_ms=standing.stream_time_ms,
                changelog_offset=changelog.end,
            ),
            value_bytes=layout.dtype.itemsize,
            first_live_segment=first_live_segment(aggregation, standing.stream_time_ms),
        )
        if isinstance(plan, ReplayTail) or aggregation.store.in_memory:
            self.restorer.replay_tail(job, store, go_on)
            return store
        store.close()
        folder = directory.store_path(name)
        self.restorer.restore_whole(job, folder, directory.restoring_path(name), self._rocks, go_on)
        return self._rocks(folder)


def stalled_after(settings: Settings) -> float:
    """Seconds after which a reader that stands still gives up.

    Longer than a dead transaction can stay open: its time-out, and the broker's next look for such (10 s).
    """
    return (settings.transaction_timeout_ms + 10_000 + settings.broker_timeout_ms) / 1000
