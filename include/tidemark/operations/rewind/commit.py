"""The one transaction of a rewind: differences, commit records and offsets of all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind, CommitRecord, commit_record
from tidemark.errors import PreflightFailed
from tidemark.failpoint import Probe
from tidemark.kafka.topics import format_partitions, partition_counts
from tidemark.names import TaskId, TopicPartition, by_topic
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.operations.offline_transaction import aborting, send_offsets, send_record
from tidemark.operations.rewind.build import PointInTimeState
from tidemark.operations.rewind.store_diff import LiveStore, changes
from tidemark.recovery.evidence import CommittedProgress
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreSpec

_SENT_AT_ONCE = 10_000


@dataclass(frozen=True)
class TaskWork:
    """The earlier and the present state of one task, both built in folders that are laid out as an instance's.

    The facts of `earlier` are those that `present` was read from. `stores` are those with a changelog.
    """

    earlier: PointInTimeState
    present: CommittedProgress
    stores: tuple[StoreSpec, ...]
    then_folder: Path
    now_folder: Path

    @property
    def task(self) -> TaskId:
        """The task being rewound."""
        return self.earlier.facts.task

    @property
    def then(self) -> CommittedProgress:
        """The progress that the task is rewound to."""
        return self.earlier.point_in_time.committed

    @property
    def batch(self) -> int:
        """The batch of the rewind itself."""
        return self.present.batch + 1

    def changes(self, spec: StoreSpec) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield what to write to a store's changelog; a value of None deletes the key."""
        live = LiveStore(
            first_live_segment(spec, self.then.stream_times.of(spec.name)),
            first_live_segment(spec, self.present.stream_times.of(spec.name)),
        )
        with (
            opened(folder_of(self.then_folder, self.task, spec.name)) as then,
            opened(folder_of(self.now_folder, self.task, spec.name)) as now,
        ):
            yield from changes(then, now, live)


@dataclass(frozen=True)
class RewindCommitter:
    """Commits a rewind. The group must be empty and `producer` initialised."""

    evidence: EvidenceReader
    producer: BatchProducer
    probe: Probe

    def prepare(self, work: list[TaskWork], commit_time_ms: int) -> None:
        """Do everything except the commit. The checkpoints of the built stores are advanced to the rewind's own batch. Blocks.

        Raises `BatchAborted` or `PreflightFailed`, after which nothing is left behind, or an error that must end this
        process.
        """
        changelogs = {
            (one.task, spec.name): self.evidence.witnesses.changelog_of(one.task, spec)
            for one in work
            for spec in one.stores
        }
        clients, plan = self.evidence.clients, self.evidence.plan
        outputs = format_partitions(plan, partition_counts(clients.admin, clients.settings))
        before = clients.ends.of([*changelogs.values(), *outputs])
        self.producer.begin()
        with aborting(self.producer):
            sent: dict[TopicPartition, int] = {}
            moved: list[CommitRecord] = []
            for one in work:
                for spec in one.stores:
                    sent[changelogs[one.task, spec.name]] = self._send(one, spec, changelogs[one.task, spec.name])
                moved.append(self._record(one, commit_time_ms, sent, before))
                send_record(self.producer, moved[-1])
            self.producer.flush()
            after = clients.ends.of(list(changelogs.values()))
            for partition, records in sent.items():
                if after[partition] - before[partition] < records:
                    raise PreflightFailed(f"{partition} did not receive all {records} records; nothing was changed")
            for one in work:
                for spec in one.stores:
                    self._mark(one, spec, commit_time_ms, after[changelogs[one.task, spec.name]])
            committed = {place: at for one in work for place, at in one.earlier.facts.committed_offsets.items()}
            send_offsets(clients, plan.application_id, self.producer, moved, committed, "rewind")
        self.probe("rewind-before-commit")

    def commit(self) -> None:
        """Commit the transaction. Raises as `BatchProducer.commit` does."""
        self.producer.commit()
        self.probe("rewind-committed")

    def _send(self, one: TaskWork, spec: StoreSpec, changelog: TopicPartition) -> int:
        """Send the changes of one store. Returns the number of records sent."""
        sent, messages = 0, []
        for key, value in one.changes(spec):
            messages.append({"key": key, "value": value})
            if len(messages) == _SENT_AT_ONCE:
                self.producer.send_many(changelog.topic, messages, changelog.partition)
                sent, messages = sent + len(messages), []
        if messages:
            self.producer.send_many(changelog.topic, messages, changelog.partition)
        return sent + len(messages)

    def _record(
        self,
        one: TaskWork,
        commit_time_ms: int,
        sent: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> CommitRecord:
        plan = self.evidence.plan
        topics = [self.evidence.witnesses.changelog_of(one.task, spec) for spec in one.stores]
        return commit_record(
            CommitKind.REWIND,
            plan.application_id,
            plan.version,
            one.task,
            one.batch,
            commit_time_ms,
            spans={topic: (offset, one.then.next_offsets[topic]) for topic, offset in one.present.next_offsets.items()},
            stream_times=one.then.stream_times,
            changelogs={partition.topic: sent[partition] for partition in topics},
            ends_before=by_topic(ends),
            rewound_to=one.then.batch,
        )

    def _mark(self, one: TaskWork, spec: StoreSpec, commit_time_ms: int, changelog_offset: int) -> None:
        with opened(folder_of(one.then_folder, one.task, spec.name)) as store:
            checkpoint = store.checkpoint
            if checkpoint is None:
                raise PreflightFailed(f"the built store {one.task}/{spec.name} has no checkpoint; nothing was changed")
            moved = replace(
                checkpoint,
                batch=one.batch,
                commit_time_ms=commit_time_ms,
                source_offsets=dict(one.then.next_offsets),
                stream_time_ms=one.then.stream_times.of(spec.name),
                changelog_offset=changelog_offset,
            )
            store.put_many([], moved, None)
