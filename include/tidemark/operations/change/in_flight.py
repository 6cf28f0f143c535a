"""Steps shared by the changes of an application: records between sub-topologies, and the commit records of a change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import Message as ClientMessage

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind, CommitRecord, commit_record
from tidemark.kafka.messages import Message
from tidemark.names import TaskId, TopicPartition, by_topic
from tidemark.operations.clients import Clients
from tidemark.operations.offline_transaction import aborting
from tidemark.recovery.evidence import CommittedProgress
from tidemark.topology.plan import TopologyPlan


def records_between(clients: Clients, partition: TopicPartition, offset: int, end: int) -> int:
    """Count the committed records of a partition in [offset, end); transaction markers also have offsets. Blocks."""
    return sum(len(batch.keys) for batch in clients.read(partition, offset, end))


def send_on(
    clients: Clients, producer: BatchProducer, partition: TopicPartition, offset: int, end: int, topic: str
) -> int:
    """Send the committed records of [offset, end) to another topic, by murmur2 of their keys. Returns their number. Blocks.

    They keep their timestamps, which are event time, and their headers. They are sent in transactions of their own, so
    nothing may refer to that topic yet.
    """
    sent = 0
    for found in clients.messages(partition, offset, end):
        producer.begin()
        with aborting(producer):
            producer.send_many(topic, [_sent_on(message) for message in found])
            producer.flush()
        producer.commit()
        sent += len(found)
    return sent


def _sent_on(message: ClientMessage) -> Message:
    record: Message = {"key": message.key(), "value": message.value(), "timestamp": message.timestamp()[1]}
    if headers := message.headers():
        record["headers"] = headers
    return record


def moved_records(
    kind: CommitKind,
    plan: TopologyPlan,
    committed: Mapping[TaskId, CommittedProgress],
    changelogs: Mapping[TaskId, Mapping[str, int]],
    ends: Mapping[TopicPartition, int],
    commit_time_ms: int,
    before: Mapping[TaskId, CommittedProgress] | None = None,
    appended: Collection[str] = (),
) -> list[CommitRecord]:
    """Return a commit record, one batch later, of each task in `committed`. `ends` are of the sinks and of every changelog.

    `changelogs` counts the records for each changelog: those for changelogs in `appended` are in the same transaction, the
    others have been written to new changelogs before. The source spans of a record run from `before`, by default `committed`,
    to the next offsets in `committed`.
    """
    ends_before = by_topic(ends)
    return [
        commit_record(
            kind,
            plan.application_id,
            plan.version,
            task,
            at.batch + 1,
            commit_time_ms,
            spans={
                topic: ((before or committed)[task].next_offsets[topic], offset)
                for topic, offset in at.next_offsets.items()
            },
            stream_times=at.stream_times,
            changelogs=dict(changelogs.get(task, {})),
            ends_before=ends_before,
            appended=tuple(sorted({*appended} & changelogs.get(task, {}).keys())),
        )
        for task, at in committed.items()
    ]
