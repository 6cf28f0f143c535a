"""Following of the changelogs of all tasks of an application, read_committed, into copies of their stores."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.atomic_file import replace_file
from tidemark.errors import OutcomeUnknown, TaskCorrupted, TidemarkError
from tidemark.kafka.committed_reader import ChangelogBatch, last_record_ends, read_committed_consumer
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.facts import Witnesses
from tidemark.registry.description_watch import DescriptionWatch
from tidemark.restore.restorer import RestoreJob
from tidemark.restore.store_builder import StoreOpener
from tidemark.standby.facts_poller import FactsPoller, StandbyFacts
from tidemark.standby.plan import StandbyPlan
from tidemark.standby.store_replica import FollowedStore, bounds_of
from tidemark.stores.checkpoint_file import write_checkpoint
from tidemark.stores.directory import STORES_FOLDER, InstanceDirectory, TaskDirectory
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.task import changelog_of
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan

log = logging.getLogger(__name__)

FOLLOWED_FILE = ".followed"
_READ_RECORDS = 20_000
_READ_S = 0.1
_LOOK_BACK_S = 5.0
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
# Errors of a topic that was deleted, or is being deleted.
_UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
}


@dataclass
class _Read:
    """The records and the next offset that one read returned for one partition."""

    next_offset: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    records_end: int | None = None
    is_out_of_range: bool = False
    is_unknown: bool = False


class Follower:
    """All copies of one standby. Used by one thread at a time; the look-out has a thread of its own."""

    def __init__(
        self,
        witnesses: Witnesses,
        standby: StandbyPlan,
        directory: InstanceDirectory,
        opener: StoreOpener,
        description: DescriptionWatch | None = None,
    ) -> None:
        """Open the copies where they were left, and begin to follow. Blocks; raises `OutcomeUnknown`, `TaskLocked`.

        `description` is checked as often as the tasks.
        """
        self._opener = opener
        self._witnesses = witnesses
        self._application_id = witnesses.plan.application_id
        self._lookout = FactsPoller(witnesses, list(standby.stores), description)
        self._folders: dict[TaskId, TaskDirectory] = {}
        self._stores: dict[TopicPartition, FollowedStore] = {}
        self._assigned: set[TopicPartition] = set()
        # Partitions that could not be read, with the time of that. Facts that were asked for later show why.
        self._overtaken: dict[TopicPartition, float] = {}
        self._unknown: dict[TopicPartition, float] = {}
        self._sight: StandbyFacts | None = None
        self._is_closed = False
        self._consumer = read_committed_consumer(witnesses.client_config, f"tidemark-standby-{self._application_id}")
        try:
            self._lookout.look()
            self._drop_replaced(directory.folder, [spec for specs in standby.stores.values() for spec in specs])
            for task, specs in standby.stores.items():
                self._folders[task] = directory.open_task(task, adopts=False)
                for spec in specs:
                    self._open(witnesses, task, spec)
            self._see()
            self._note_records_ends()
        except BaseException:
            self.close()
            raise
        self._lookout.start()

    def _note_records_ends(self) -> None:
        """Read where the last records of the copies from disk end, so that their positions count no transaction marker."""
        offsets = {
            partition: (store.bounds.changelog.low, store.next_offset)
            for partition, store in self._stores.items()
            if store.fault is None and store.holds_something
        }
        try:
            found = last_record_ends(self._witnesses.client_config, offsets, stalled_after_s=_LOOK_BACK_S)
        except OutcomeUnknown as error:
            log.warning("positions of copies count transaction markers until the next record: %s", error)
            return
        for partition, offset in found.items():
            self._stores[partition].note_records_end(offset)

    def _drop_replaced(self, root: Path, specs: Iterable[StoreSpec]) -> None:
        """Remove copies of topics that were deleted and created again, and note the topics that are followed now."""
        file, known = root / FOLLOWED_FILE, self._witnesses.identities.known
        topics = {spec.name: changelog_of(self._application_id, spec) for spec in specs}
        now = {topic: known[topic] for topic in topics.values() if topic in known}
        before: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        for store, topic in topics.items():
            if topic in now and before.get(topic, now[topic]) != now[topic]:
                log.warning("standby copies of %s are built again: topic %s was created again", store, topic)
                for folder in root.glob(f"*/{STORES_FOLDER}/{store}"):
                    shutil.rmtree(folder)
        replace_file(file, json.dumps({**before, **now}), synced=True)

    def _open(self, witnesses: Witnesses, task: TaskId, spec: StoreSpec) -> None:
        job = follow_job(witnesses.plan, task, spec, witnesses.changelog_of(task, spec))
        folder = self._folders[task].store_path(spec.name)
        self._stores[job.changelog] = FollowedStore(
            task, job, witnesses.kept_deletions(spec), folder, self._open_copy, witnesses.clock
        )

    def _open_copy(self, folder: Path) -> RocksStore:
        """Open a copy. One that cannot be read is deleted, because it is only a copy."""
        try:
            return self._opener.rocks(folder)
        except TaskCorrupted as error:
            log.warning("%s; it is only a copy, and is built again", error)
            shutil.rmtree(folder)
            return self._opener.rocks(folder)

    @property
    def stores(self) -> list[FollowedStore]:
        """The copies, sorted by task."""
        return sorted(self._stores.values(), key=lambda store: (store.task, store.job.spec.name))

    @property
    def asked_ms(self) -> int:
        """The time of the last request to Kafka about the application, in epoch milliseconds."""
        return self._lookout.newest_facts.asked_ms

    def store(self, task: TaskId, name: str) -> FollowedStore | None:
        """Return one copy; None if it is not followed here."""
        return next((s for s in self._stores.values() if s.task == task and s.job.spec.name == name), None)

    def step(self) -> None:
        """Read once and write the records. Blocks for a tenth of a second if there are none.

        Raises `StartRefused` for values that are not the topology's, `OutcomeUnknown` if a changelog cannot be read.
        """
        self._see()
        for partition, read in self._of_known_topics(self._read()).items():
            store = self._stores[partition]
            if not store.write(ChangelogBatch(read.keys, read.values, read.next_offset), read.records_end):
                self._unassign([partition])
            # What is left of the changelog, or whether it was deleted, is known with the next facts.
            if read.is_out_of_range:
                self._overtaken.setdefault(partition, time.monotonic())
            if read.is_unknown:
                self._unknown.setdefault(partition, time.monotonic())
        self._assign()

    def _of_known_topics(self, reads: Mapping[TopicPartition, _Read]) -> Mapping[TopicPartition, _Read]:
        """Return what was read from topics that still have the known id. The rest is read again, or never.

        The ids are asked for after reading: a topic that has the known id now had it then. Offsets prove nothing,
        because a new topic has the same ones.
        """
        moved = {p for p, read in reads.items() if read.next_offset > self._stores[p].next_offset}
        if not moved:
            return reads
        try:
            lost = self._witnesses.identities.lost(self._witnesses.plan, {p.topic for p in moved})
        except TidemarkError as error:
            log.warning("the ids of topics are not known, so the last records are read again: %s", error)
            self._unassign(moved)
            return {p: read for p, read in reads.items() if p not in moved}
        for partition in (p for p in moved if p.topic in lost):
            store = self._stores[partition]
            store.stop(lost[partition.topic].reason, store.bounds)
        return {p: read for p, read in reads.items() if p.topic not in lost}

    def _see(self) -> None:
        """Take in new facts, and read each copy from where that leaves it."""
        newest_facts = self._lookout.newest_facts
        if newest_facts is self._sight:
            return
        self._sight = newest_facts
        for partition, store in self._stores.items():
            if store.fault is not None:
                continue
            facts = newest_facts.tasks[store.task]
            bounds = bounds_of(facts, store.job, newest_facts.asked_ms, newest_facts.asked_s)
            if partition.topic in newest_facts.lost:
                store.stop(newest_facts.lost[partition.topic].reason, bounds)
                continue
            is_rebuilt = store.see(bounds)
            if self._unknown.get(partition, newest_facts.asked_s) < newest_facts.asked_s:
                del self._unknown[partition]
            if self._overtaken.get(partition, newest_facts.asked_s) < newest_facts.asked_s:
                del self._overtaken[partition]
                if not is_rebuilt:
                    store.empty(f"is older than the beginning of {partition}")
                is_rebuilt = True
            if is_rebuilt:
                self._unassign([partition])
        self._assign()

    def _assign(self) -> None:
        """Assign the partitions that can be read, from explicit offsets."""
        held = self._overtaken.keys() | self._unknown.keys()
        wanted = {p for p, store in self._stores.items() if p not in held and store.fault is None}
        self._unassign(self._assigned - wanted)
        added = sorted(wanted - self._assigned)
        if added:
            self._consumer.incremental_assign(
                [ClientPartition(p.topic, p.partition, self._stores[p].next_offset) for p in added]
            )
            self._assigned.update(added)

    def _unassign(self, partitions: Iterable[TopicPartition]) -> None:
        removed = [p for p in partitions if p in self._assigned]
        if removed:
            self._consumer.incremental_unassign([ClientPartition(p.topic, p.partition) for p in removed])
            self._assigned.difference_update(removed)

    def _read(self) -> Mapping[TopicPartition, _Read]:
        """Read once. Returns what was read by partition. Raises `OutcomeUnknown`."""
        reads: dict[TopicPartition, _Read] = {}
        messages: Any = self._consumer.consume(_READ_RECORDS, timeout=_READ_S)
        for message in messages:
            partition = TopicPartition(message.topic(), message.partition())
            if partition not in self._assigned:
                continue
            read = reads.get(partition)
            if read is None:
                read = reads[partition] = _Read(self._stores[partition].next_offset)
            error = message.error()
            if error is None:
                read.keys.append(message.key())
                read.values.append(message.value())
                read.next_offset = read.records_end = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                read.next_offset = max(read.next_offset, message.offset())
            elif error.code() in _OUT_OF_RANGE:
                read.is_out_of_range = True
            elif error.code() in _UNKNOWN:
                read.is_unknown = True
            elif not error.retriable():
                raise OutcomeUnknown(f"{partition} cannot be followed: {error.str()}") from KafkaException(error)
        return reads

    def close(self) -> None:
        """Stop following. The checkpoints are written, and mirrored to `.checkpoint`. May be called twice.

        If a store cannot be closed, the others are closed nevertheless, and the first error is raised in the end.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._lookout.close()
        self._consumer.close()
        offsets: dict[TaskId, dict[TopicPartition, int]] = {task: {} for task in self._folders}
        failures: list[Exception] = []
        for partition, store in self._stores.items():
            try:
                store.close()
                offsets[store.task][partition] = store.next_offset
            except Exception as error:  # noqa: BLE001 - raised below.
                failures.append(error)
        for task, folder in self._folders.items():
            try:
                write_checkpoint(folder.checkpoint_file, offsets[task])
            except Exception as error:  # noqa: BLE001 - raised below.
                failures.append(error)
            folder.close()
        if failures:
            raise failures[0]


def follow_job(plan: TopologyPlan, task: TaskId, spec: StoreSpec, changelog: TopicPartition) -> RestoreJob:
    """Return a restore job without an end. Its target is the pattern of the copy's checkpoint, without a batch."""
    layout = value_layouts(plan.subtopologies[task.subtopology])[spec.name]
    pattern = StoreCheckpoint(
        application_id=plan.application_id,
        topology_version=plan.version,
        store=spec.name,
        value_layout=value_signature(spec, layout),
        batch=-1,
        commit_time_ms=0,
        source_offsets={},
        stream_time_ms=NO_STREAM_TIME,
        changelog_offset=0,
    )
    value_bytes = None if layout is None else layout.value_bytes
    return RestoreJob(spec, changelog, 0, pattern, value_bytes, None, layout)
