"""From an assigned partition to an open task: gather the evidence, plan, restore (rules 1, 4, 11, 12)."""

from __future__ import annotations

import logging
import shutil
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
from tidemark.names import TaskId, TopicPartition
from tidemark.restore.restore import RestoreJob, Restorer
from tidemark.settings import Settings
from tidemark.start.plan import (
    CopyKind,
    Fresh,
    Refuse,
    ReplayTail,
    SourceEvidence,
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
from tidemark.stores.layout import ValueLayout
from tidemark.stores.marker import NO_STREAM_TIME, Marker
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store
from tidemark.stores.rocksdb import RocksStore
from tidemark.tasks.code import load_code
from tidemark.tasks.task import Task, changelog_of
from tidemark.tasks.values import first_live_segment, value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, SubTopology, TopologyPlan

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
    sink_partitions: Mapping[str, int]

    def open(self, assignments: Sequence[Assignment], go_on: Callable[[Assignment], bool]) -> list[OpenedTask]:
        """Open all, or raise and leave none open.

        Blocks until every store is level with Kafka. Raises `StartRefused`, `OutcomeUnknown`, `TaskLocked`, or
        `RestoreSuspended` when `go_on` says no for a task.
        """
        stalled_after_s = stalled_after(self.settings)
        sources = {a.task: self._sources(a) for a in assignments}
        partitions = [partition for found in sources.values() for partition in found]
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
                    {p: committed[p] for p in sources[assignment.task] if p in committed},
                    records.get(assignment.task),
                    {p: Watermarks(lows[p], ends[p]) for p in sources[assignment.task]},
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

    def _sources(self, assignment: Assignment) -> list[TopicPartition]:
        """The partitions that a task reads, the lead topic's first."""
        subtopology = self.plan.subtopologies[assignment.task.subtopology]
        return [TopicPartition(topic, assignment.task.partition) for topic in subtopology.source_topics]

    def _open_one(
        self,
        assignment: Assignment,
        committed: Mapping[TopicPartition, ClientPartition],
        record: CommitRecord | None,
        sources: Mapping[TopicPartition, Watermarks],
        go_on: Callable[[], bool],
    ) -> OpenedTask:
        subtopology = self.plan.subtopologies[assignment.task.subtopology]
        directory = self.directory.open_task(assignment.task)
        stores: dict[str, Store] = {}
        try:
            changelogs = self._changelog_watermarks(assignment, subtopology)
            for spec in subtopology.stores:
                stores[spec.name] = self._open_store(directory, spec)
            plan = plan_start(
                self._evidence(assignment, subtopology, directory, stores, changelogs, committed, record, sources)
            )
            log.info("start plan: task=%s plan=%s", assignment.task, plan)
            if isinstance(plan, Refuse):
                raise StartRefused(f"{plan.reason}; {plan.remedy}")
            if isinstance(plan, Fresh):
                standing = Standing(plan.next_offsets, -1, NO_STREAM_TIME)
            else:
                standing = plan.standing
                layouts = value_layouts(subtopology)
                for spec in subtopology.stores:
                    store = stores[spec.name]
                    if not spec.is_logged:
                        stores[spec.name] = self._keep_or_empty(assignment, spec, directory, store, standing)
                        continue
                    job = self._restore_job(assignment, spec, layouts[spec.name], standing, changelogs[spec.name])
                    stores[spec.name] = self._bring_level(job, directory, store, plan.stores[spec.name], go_on)
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
            next_offsets=standing.next_offsets,
            stream_time_ms=standing.stream_time_ms,
            batch=standing.batch,
            sink_partitions=self.sink_partitions,
        )
        return OpenedTask(task, isinstance(plan, Fresh))

    def _open_store(self, directory: TaskDirectory, spec: StoreSpec) -> Store:
        if spec.in_memory:
            return MemoryStore()
        folder = directory.store_path(spec.name)
        if spec.custom is not None:
            folder.mkdir(parents=True, exist_ok=True)
            make: Callable[[Path], Store] = load_code(spec.custom, f"store {spec.name}")
            return make(folder)
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
            spec.name: TopicPartition(changelog_of(self.plan.application_id, spec), assignment.task.partition)
            for spec in subtopology.stores
            if spec.is_logged
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
        committed: Mapping[TopicPartition, ClientPartition],
        record: CommitRecord | None,
        sources: Mapping[TopicPartition, Watermarks],
    ) -> TaskEvidence:
        found: list[StoreEvidence] = []
        layouts = value_layouts(subtopology)
        for spec in subtopology.stores:
            if not spec.is_logged:
                continue
            marker = stores[spec.name].marker
            location = str(directory.store_path(spec.name))
            policy = self.policies[spec.name]
            found.append(
                StoreEvidence(
                    store=spec.name,
                    value_layout=value_signature(spec, layouts[spec.name]),
                    copies=() if marker is None else (StateCopy(CopyKind.LOCAL, marker, location),),
                    changelog=TopicPartition(changelog_of(self.plan.application_id, spec), assignment.task.partition),
                    # A source that is its own changelog holds records before the application has ever run.
                    changelog_watermarks=changelogs[spec.name] if spec.source_topic is None else Watermarks(0, 0),
                    delete_retention_ms=policy.delete_retention_ms,
                    store_retention_ms=spec.retention_ms,
                    changelog_retention_ms=policy.retention_ms,
                )
            )
        earliest = self.settings.auto_offset_reset == "earliest"
        lead = committed.get(assignment.partition)
        # Between two sub-topologies nothing may be left out.
        internal = set(self.plan.repartition_topics)
        return TaskEvidence(
            application_id=self.plan.application_id,
            task=assignment.task,
            sources=tuple(
                SourceEvidence(
                    partition,
                    committed[partition].offset if partition in committed else None,
                    watermarks,
                    watermarks.low if earliest or partition.topic in internal else watermarks.end,
                )
                for partition, watermarks in sources.items()
            ),
            committed_metadata=None if lead is None else OffsetMetadata.decode(lead.metadata),
            last_record=record,
            guarantee=self.plan.guarantee,
            stores=tuple(found),
            now_ms=self.clock(),
        )

    def _restore_job(
        self,
        assignment: Assignment,
        spec: StoreSpec,
        layout: ValueLayout | None,
        standing: Standing,
        changelog: Watermarks,
    ) -> RestoreJob:
        """The way to `standing`. A source that is its own changelog counts only up to what was committed (rule 19)."""
        end = changelog.end if spec.source_topic is None else standing.next_offsets[spec.source_topic]
        return RestoreJob(
            spec=spec,
            changelog=TopicPartition(changelog_of(self.plan.application_id, spec), assignment.task.partition),
            low_offset=changelog.low,
            target=Marker(
                application_id=self.plan.application_id,
                topology_version=self.plan.version,
                store=spec.name,
                value_layout=value_signature(spec, layout),
                batch=standing.batch,
                commit_time_ms=self.clock(),
                source_offsets=dict(standing.next_offsets),
                stream_time_ms=standing.stream_time_ms,
                changelog_offset=end,
            ),
            value_bytes=None if layout is None else layout.value_bytes,
            first_live_segment=first_live_segment(spec, standing.stream_time_ms),
            layout=layout,
        )

    def _keep_or_empty(
        self, assignment: Assignment, spec: StoreSpec, directory: TaskDirectory, store: Store, standing: Standing
    ) -> Store:
        """A store that is not logged: the folder's, if it stands where Kafka stands; else an empty one, and say so."""
        marker = store.marker
        if marker is not None and dict(marker.source_offsets) == dict(standing.next_offsets):
            return store
        log.warning(
            "store %s of task %s is not logged and not where Kafka stands: it starts empty, what it held cannot be "
            "restored",
            spec.name,
            assignment.task,
        )
        store.close()
        shutil.rmtree(directory.store_path(spec.name), ignore_errors=True)
        return self._open_store(directory, spec)

    def _bring_level(
        self,
        job: RestoreJob,
        directory: TaskDirectory,
        store: Store,
        plan: StorePlan,
        go_on: Callable[[], bool],
    ) -> Store:
        if isinstance(plan, UseReady):
            return store
        if isinstance(plan, ReplayTail):
            self.restorer.replay_tail(job, plan.from_offset, store, go_on)
            return store
        store.close()
        if job.spec.in_memory or job.spec.custom is not None:
            # Emptied before: a key whose tombstone is compacted away must not stay.
            shutil.rmtree(directory.store_path(job.spec.name), ignore_errors=True)
            empty = self._open_store(directory, job.spec)
            self.restorer.replay_tail(job, job.low_offset, empty, go_on)
            return empty
        folder = directory.store_path(job.spec.name)
        self.restorer.restore_whole(job, folder, directory.restoring_path(job.spec.name), self._rocks, go_on)
        return self._rocks(folder)


def stalled_after(settings: Settings) -> float:
    """Seconds after which a reader that stands still gives up.

    Longer than a dead transaction can stay open: its time-out, and the broker's next look for such (10 s).
    """
    return (settings.transaction_timeout_ms + 10_000 + settings.broker_timeout_ms) / 1000
