"""The one transaction of a rewind: differences, commit records and offsets of all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.broker.topics import partition_counts
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.commit.transaction import BatchProducer
from tidemark.errors import BatchAborted, PreflightFailed, TidemarkError
from tidemark.membership.member import GroupMetadata
from tidemark.names import TaskId, TopicPartition, commits_topic
from tidemark.probe import Probe
from tidemark.restore.difference import Live, changes
from tidemark.restore.fence import members
from tidemark.restore.past import Past, folder_of, opened
from tidemark.restore.run import RestoreKit
from tidemark.start.evidence import Standing
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreSpec

_SENT_AT_ONCE = 10_000


@dataclass(frozen=True)
class TaskWork:
    """One task between its two states, both built: `then_folder` and `now_folder` are laid out as an instance's.

    `stores` are those with a changelog.
    """

    past: Past
    present: Standing
    stores: tuple[StoreSpec, ...]
    then_folder: Path
    now_folder: Path

    @property
    def task(self) -> TaskId:
        """Which."""
        return self.past.facts.task

    @property
    def then(self) -> Standing:
        """Where it goes back to."""
        return self.past.moment.standing

    @property
    def batch(self) -> int:
        """That of the rewind itself."""
        return self.present.batch + 1

    def changes(self, spec: StoreSpec) -> Iterator[tuple[bytes, bytes | None]]:
        """What to write to a store's changelog; None deletes."""
        live = Live(
            first_live_segment(spec, self.then.stream_time_ms), first_live_segment(spec, self.present.stream_time_ms)
        )
        with (
            opened(folder_of(self.then_folder, self.task, spec.name)) as then,
            opened(folder_of(self.now_folder, self.task, spec.name)) as now,
        ):
            yield from changes(then, now, live)


@dataclass(frozen=True)
class RewindCommitter:
    """Commits a rewind; the group is empty and `producer` has been initialised."""

    kit: RestoreKit
    producer: BatchProducer
    probe: Probe

    def prepare(self, work: list[TaskWork], commit_time_ms: int) -> None:
        """Everything but the commit. The built stores' markers are moved to where the rewind will stand.

        Raises `BatchAborted` or `PreflightFailed` and leaves nothing behind; or what must end this process.
        """
        changelogs = {
            (one.task, spec.name): self.kit.witnesses.changelog_of(one.task, spec)
            for one in work
            for spec in one.stores
        }
        before = self.kit.ends.of([*changelogs.values(), *self._sink_partitions()])
        self.producer.begin()
        with _aborting(self.producer):
            sent: dict[TopicPartition, int] = {}
            for one in work:
                for spec in one.stores:
                    sent[changelogs[one.task, spec.name]] = self._send(one, spec, changelogs[one.task, spec.name])
                self._send_record(one, commit_time_ms, sent, before)
            self.producer.flush()
            after = self.kit.ends.of(list(changelogs.values()))
            for partition, records in sent.items():
                if after[partition] - before[partition] < records:
                    raise PreflightFailed(f"{partition} did not receive all {records} records; nothing was changed")
            for one in work:
                for spec in one.stores:
                    self._mark(one, spec, commit_time_ms, after[changelogs[one.task, spec.name]])
            self._require_alone()
            self._send_offsets(work)
            self._require_alone()
        self.probe("rewind-before-commit")

    def commit(self) -> None:
        """Make it visible. Raises as `BatchProducer.commit` does."""
        self.producer.commit()
        self.probe("rewind-committed")

    def _send(self, one: TaskWork, spec: StoreSpec, changelog: TopicPartition) -> int:
        """How many records were sent."""
        sent, messages = 0, []
        for key, value in one.changes(spec):
            messages.append({"key": key, "value": value})
            if len(messages) == _SENT_AT_ONCE:
                self.producer.send_many(changelog.topic, messages, changelog.partition)
                sent, messages = sent + len(messages), []
        if messages:
            self.producer.send_many(changelog.topic, messages, changelog.partition)
        return sent + len(messages)

    def _send_record(
        self,
        one: TaskWork,
        commit_time_ms: int,
        sent: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        kit, number = self.kit, one.task.partition
        ends_before: dict[str, dict[int, int]] = {}
        for partition, offset in ends.items():
            ends_before.setdefault(partition.topic, {})[partition.partition] = offset
        topics = [kit.witnesses.changelog_of(one.task, spec) for spec in one.stores]
        record = CommitRecord(
            kind=CommitKind.REWIND,
            application_id=kit.plan.application_id,
            topology_version=kit.plan.version,
            task=one.task,
            instance=0,
            batch=one.batch,
            commit_time_ms=commit_time_ms,
            sources={
                topic: {number: (offset, one.then.next_offsets[topic])}
                for topic, offset in one.present.next_offsets.items()
            },
            stream_time_ms=one.then.stream_time_ms,
            rows=0,
            late_rows=0,
            bad_rows=0,
            filtered_rows=0,
            sinks={},
            changelogs={partition.topic: sent[partition] for partition in topics},
            ends_before=ends_before,
            rewound_to=one.then.batch,
        )
        message = {"key": str(one.task).encode(), "value": record.to_bytes()}
        self.producer.send_many(commits_topic(kit.plan.application_id), [message], number)

    def _mark(self, one: TaskWork, spec: StoreSpec, commit_time_ms: int, changelog_offset: int) -> None:
        with opened(folder_of(one.then_folder, one.task, spec.name)) as store:
            marker = store.marker
            if marker is None:
                raise PreflightFailed(f"the built store {one.task}/{spec.name} has no marker; nothing was changed")
            moved = replace(
                marker,
                batch=one.batch,
                commit_time_ms=commit_time_ms,
                source_offsets=dict(one.then.next_offsets),
                stream_time_ms=one.then.stream_time_ms,
                changelog_offset=changelog_offset,
            )
            store.put_many([], moved, None)

    def _send_offsets(self, work: list[TaskWork]) -> None:
        """As a member of no generation: the coordinator lets that through, and the group is empty (rule 6)."""
        offsets = []
        for one in work:
            metadata = OffsetMetadata(one.batch, one.then.stream_time_ms, self.kit.plan.version).encode()
            for topic in one.present.next_offsets:
                offset = one.then.next_offsets[topic]
                offsets.append(ClientPartition(topic, one.task.partition, offset, metadata))
        consumer = Consumer({**self.kit.client_config, "group.id": self.kit.plan.application_id})
        try:
            group = GroupMetadata.parse(consumer.consumer_group_metadata(), None)
            self.producer.send_offsets(offsets, group)
        finally:
            consumer.close()

    def _require_alone(self) -> None:
        kit = self.kit
        if found := members(kit.admin, kit.plan.application_id, kit.settings.broker_timeout_ms / 1000):
            raise PreflightFailed(
                f"{', '.join(found)} joined the group of {kit.plan.application_id} meanwhile: stop it, then rewind again; "
                "nothing was changed"
            )

    def _sink_partitions(self) -> list[TopicPartition]:
        counts = partition_counts(self.kit.admin, self.kit.settings)
        topics = dict.fromkeys(topic for s in self.kit.plan.subtopologies for topic in s.sink_topics)
        return [TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))]


@contextmanager
def _aborting(producer: BatchProducer) -> Iterator[None]:
    """End the open transaction on an error, so that nobody waits for its time-out."""
    try:
        yield
    except BatchAborted:
        raise  # It is aborted already.
    except (TidemarkError, KeyboardInterrupt):
        with suppress(TidemarkError):
            producer.abort()
        raise
