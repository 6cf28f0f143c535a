"""The commit of one batch, in seven numbered steps; `docs/commit-protocol.md` has the same numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition as ClientPartition

from tidemark.commit.dead_letter import dead_letter_record
from tidemark.commit.lost_markers import LostMarkers
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind, commit_record
from tidemark.errors import BatchAborted, InstanceFenced, OutcomeUnknown
from tidemark.failpoint import Probe
from tidemark.kafka.member import GroupMetadata, Member
from tidemark.kafka.offsets import EndOffsets, PartitionEnd
from tidemark.kafka.record_sizes import SizeLimits
from tidemark.kafka.record_timestamps import TimestampBounds
from tidemark.names import DESCRIPTION_KEY, TaskId, TopicPartition, by_topic, commits_topic, dlq_topic, topology_topic
from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate
from tidemark.topology.plan import Guarantee


class TasksRevoked(BatchAborted):
    """A task of the batch is no longer owned by this instance: nothing was committed, and the batch is discarded."""


@dataclass(frozen=True)
class Committer:
    """Everything that a commit needs besides the batch. `clock` returns epoch milliseconds."""

    application_id: str
    topology_version: str
    instance: int
    producer: BatchProducer
    member: Member
    ends: EndOffsets
    sink_partitions: tuple[TopicPartition, ...]
    lock: threading.RLock
    clock: Callable[[], int]
    probe: Probe
    timestamp_bounds: Mapping[str, TimestampBounds] = field(default_factory=dict)
    """Bounds of the sinks that do not accept every timestamp."""
    limits: SizeLimits = field(default_factory=SizeLimits)
    description: bytes | None = None
    """Description of this version's state, if `<app>-topology` holds another one or none; it is committed with the batch."""

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    lost_markers: LostMarkers | None = None
    """None without transactions."""

    def init(self, timeout_s: float) -> None:
        """Finish what another holder of the producer's name has left open; must be called first. Blocks."""
        (self.producer if self.lost_markers is None else self.lost_markers).init(timeout_s)

    def commit(self, kind: CommitKind, batch: Sequence[tuple[Task, TaskUpdate]]) -> None:
        """Commit one batch exactly once, or raise and leave nothing of it visible. Blocks.

        Raises `TasksRevoked` if this instance no longer owns a task, `BatchAborted` if the same batch may be tried again,
        `InstanceFenced` and `OutcomeUnknown` if this process must end, also because a changelog has lost its last records.
        """
        with self.lock:
            self._require_ownership(batch)
            commit_time_ms = self.clock()
            ends_before, topology_end = self._ends_before(batch)
            _require_whole_changelogs(batch, ends_before)
            self.producer.begin()  # 1
            if self.description is not None:
                message = {"key": DESCRIPTION_KEY, "value": self.description}
                self.producer.send_many(topology_topic(self.application_id), [message], partition=0)
                # Also without transactions, no commit record must exist without the description that it refers to.
                self.producer.flush()
                topology_end += 1
            self.probe("1-begin")
            for _, update in batch:  # 2
                self._send_outputs(update, commit_time_ms)
            self.probe("2-outputs")
            self._require_membership(batch, topology_end)
            for _, update in batch:  # 3
                self._send_changelogs(update)
            self.probe("3-changelogs")
            told_ends = by_topic(ends_before)
            if self.guarantee is Guarantee.AT_LEAST_ONCE:
                # A start continues from the record if the group's offsets are gone, so the record must be the last of all.
                self.producer.flush()
            self._require_membership(batch, topology_end)
            for _, update in batch:  # 4
                self._send_commit_record(kind, update, commit_time_ms, told_ends)
            self.producer.flush()
            changelog_ends = self._changelog_ends(batch, ends_before)
            self.probe("4-commit-records")
            self._send_offsets(batch, self._next_offsets(batch))  # 5
            self.probe("5-offsets")
            self.producer.commit()  # 6
            self.probe("6-commit")
            for task, update in batch:  # 7
                task.apply(update, changelog_ends[task.id], commit_time_ms)
                self.probe("7-one-store")
            self.probe("7-stores")

    def _require_ownership(self, batch: Sequence[tuple[Task, TaskUpdate]]) -> None:
        """Raise `TasksRevoked` if this instance has lost a task: brokers check the member, but not who owns a partition.

        See invariant: ownership at commit.
        """
        for task, _ in batch:
            if self.member.ownership.epoch(task.lead) != task.epoch:
                raise TasksRevoked(f"task {task.id} was revoked; its batch is discarded")

    def _ends_before(self, batch: Sequence[tuple[Task, TaskUpdate]]) -> tuple[dict[TopicPartition, int], int]:
        """Return the ends of sinks and changelogs, once no aborted transaction is open in what this one will write to.

        The second value is the end of `<app>-topology` under `at_least_once`; 0 otherwise.
        """
        counted = [*self.sink_partitions, *(p for task, _ in batch for p in task.changelogs)]
        commits, topology = commits_topic(self.application_id), TopicPartition(topology_topic(self.application_id), 0)
        places = [*counted, *{TopicPartition(commits, update.task.partition) for _, update in batch}]
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            places.append(topology)
        found = self._asked_ends(places)
        while self.lost_markers is not None and self.lost_markers.end_in(found):
            found = self._asked_ends(places)
        return {place: found[place].offset for place in counted}, found[topology].offset if topology in found else 0

    def _asked_ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionEnd]:
        try:
            return self.ends.with_epochs(places)
        except OutcomeUnknown as unanswered:
            raise BatchAborted(f"nothing of the batch was sent: {unanswered}") from unanswered

    def _send_outputs(self, update: TaskUpdate, commit_time_ms: int) -> None:
        for output in update.outputs:
            bounds = self.timestamp_bounds.get(output.topic)
            messages = bounds.within(output.messages, commit_time_ms) if bounds else output.messages
            self.producer.send_many(output.topic, messages, output.partition)
            self.probe("2-in-the-middle")
        dlq = dlq_topic(self.application_id)
        for letter in update.dead_letters:
            self.producer.send_one(dlq, *dead_letter_record(letter, self.limits.of(dlq)))

    def _send_changelogs(self, update: TaskUpdate) -> None:
        for store in update.stores:
            if store.changelog is None:
                continue
            for write in store.writes:
                messages = [{"key": k, "value": v} for k, v in zip(write.keys, write.values, strict=True)]
                self.producer.send_many(store.changelog, messages, partition=update.task.partition)
                self.probe("3-in-the-middle")

    def _send_commit_record(
        self, kind: CommitKind, update: TaskUpdate, commit_time_ms: int, ends_before: Mapping[str, Mapping[int, int]]
    ) -> None:
        record = commit_record(
            kind,
            self.application_id,
            self.topology_version,
            update.task,
            update.batch,
            commit_time_ms,
            spans=update.sources,
            stream_times=update.stream_times,
            changelogs={store.changelog: store.records for store in update.stores if store.changelog is not None},
            ends_before=ends_before,
            instance=self.instance,
            rows=update.rows,
            late_rows=update.late_rows,
            bad_rows=update.bad_rows,
            filtered_rows=update.filtered_rows,
            sinks=update.sink_counts(dlq_topic(self.application_id)),
            guarantee=self.guarantee,
        )
        message = {"key": str(update.task).encode(), "value": record.to_bytes()}
        self.producer.send_many(commits_topic(self.application_id), [message], partition=update.task.partition)

    def _changelog_ends(
        self, batch: Sequence[tuple[Task, TaskUpdate]], ends_before: Mapping[TopicPartition, int]
    ) -> dict[TaskId, dict[str, int]]:
        """Return changelog ends after flush and before commit; abort the batch if they show fewer records than were sent.

        See invariants: store checkpoint, delivered before offsets.
        """
        ends = self.ends.of([p for task, _ in batch for p in task.changelogs])
        for _, update in batch:
            for store in update.stores:
                if store.changelog is None:
                    continue
                partition = TopicPartition(store.changelog, update.task.partition)
                # Markers of the previous transaction may still arrive, so the log may grow by more.
                if ends[partition] - ends_before[partition] < store.records:
                    self.producer.abort()
                    raise BatchAborted(
                        f"{partition} did not receive all {store.records} records; the batch was aborted"
                    )
        return {task.id: {p.topic: ends[p] for p in task.changelogs} for task, _ in batch}

    def _require_membership(self, batch: Sequence[tuple[Task, TaskUpdate]], topology_end: int) -> None:
        """Raise, under `at_least_once`, if the group has given the tasks to others while this process was stopped. Blocks.

        An offset of a partition that no task reads is committed, because the coordinator refuses that to a member of another
        generation. It must be no offset of the tasks: if the client joins again before it sends the request, that would take
        back what the next owner has committed. It is the end of that partition, so that monitoring sees no lag. With
        transactions, step 5 comes before anything is visible. See invariant: order of at_least_once.
        """
        if self.guarantee is not Guarantee.AT_LEAST_ONCE:
            return
        group = self._send_offsets(batch, [ClientPartition(topology_topic(self.application_id), 0, topology_end)])
        if self.member.metadata() != group:
            # The client joined again before it sent them, and the coordinator has checked the new generation.
            self.producer.abort()
            raise BatchAborted("this member has joined the group again meanwhile; the batch was aborted")

    def _next_offsets(self, batch: Sequence[tuple[Task, TaskUpdate]]) -> list[ClientPartition]:
        return [
            ClientPartition(
                topic, update.task.partition, end,
                OffsetMetadata(update.batch, update.stream_times, self.topology_version).encode(),
            )
            for _, update in batch
            for topic, (_, end) in update.sources.items()
        ]  # fmt: skip

    def _send_offsets(
        self, batch: Sequence[tuple[Task, TaskUpdate]], offsets: Sequence[ClientPartition]
    ) -> GroupMetadata:
        """Send offsets as this member of its generation, which is returned; abort the batch if it has lost the tasks."""
        group = self.member.metadata()
        if not group.is_checked:
            self.producer.abort()
            raise BatchAborted("the group has no valid generation for this member at the moment; the batch was aborted")
        try:
            self._require_ownership(batch)
        except TasksRevoked:
            self.producer.abort()
            raise
        try:
            self.producer.send_offsets(offsets, group)
        except InstanceFenced as fenced:
            if self.member.metadata().member_id == group.member_id:
                raise
            # The client was removed and joins again with another id: the member that has replaced it is this instance's own.
            self.producer.abort()
            raise TasksRevoked(
                "the group has removed this member, which joins again; its batch is discarded"
            ) from fenced
        return group


def _require_whole_changelogs(batch: Sequence[tuple[Task, TaskUpdate]], ends: Mapping[TopicPartition, int]) -> None:
    """Raise `OutcomeUnknown` if a changelog ends before the offset up to which a store of the batch has it.

    The next start refuses a changelog that has lost records, by the store or by the last commit record. If this batch were
    written, it would be as long as before. See invariant: topic identity.
    """
    for task, _ in batch:
        for place, offset in task.changelog_offsets.items():
            if ends[place] < offset:
                raise OutcomeUnknown(
                    f"{place} ends at {ends[place]}, but its store has what was written up to {offset}: the topic has lost "
                    "records; nothing more is committed"
                )
