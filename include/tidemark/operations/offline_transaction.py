"""A transaction that a command commits while no instance runs: offsets and commit records of tasks together.

See invariant: commit records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, IsolationLevel
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitRecord
from tidemark.errors import BatchAborted, PreflightFailed, TidemarkError
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.group import members
from tidemark.kafka.member import GroupMetadata
from tidemark.kafka.offsets import committed_offsets, retry_until_stable
from tidemark.names import TopicPartition, commits_topic
from tidemark.operations.clients import Clients


@contextmanager
def aborting(producer: BatchProducer) -> Iterator[None]:
    """Abort the open transaction on an error, so that readers need not wait for its time-out."""
    try:
        yield
    except BatchAborted:
        raise  # It is aborted already.
    except (TidemarkError, KeyboardInterrupt):
        with suppress(TidemarkError):
            producer.abort()
        raise


def send_record(producer: BatchProducer, record: CommitRecord) -> None:
    """Add a commit record to the open transaction."""
    message = {"key": str(record.task).encode(), "value": record.to_bytes()}
    producer.send_many(commits_topic(record.application_id), [message], record.task.partition)


def send_offsets(
    clients: Clients,
    application_id: str,
    producer: BatchProducer,
    records: Sequence[CommitRecord],
    before: Mapping[TopicPartition, ClientPartition | None],
    again: str,
) -> None:
    """Add the end offsets of every record to the open transaction, without membership in the group.

    The group coordinator accepts that, and ownership is safe because the group is empty (see invariant: ownership at
    commit), which is checked before and after. `before` are the committed offsets that the records continue from, or None,
    by partition. No instance can start from them once these offsets are pending; one that ran before that has committed
    others. Raises `PreflightFailed`, which names the members that joined, or the offset that is another one now, and what to
    do again (`again`, a verb).
    """
    offsets = [
        ClientPartition(topic, record.task.partition, offset, _metadata(record))
        for record in records
        for topic, offset in record.end_offsets.items()
    ]
    _require_alone(clients, application_id, again)
    consumer = Consumer({**clients.client_config, "group.id": application_id})
    try:
        producer.send_offsets(offsets, GroupMetadata.parse(consumer.consumer_group_metadata(), None))
    finally:
        consumer.close()
    _require_alone(clients, application_id, again)
    if changed := changed_offset(before, _committed_now(clients, application_id, before)):
        raise PreflightFailed(
            f"{changed}: an instance of {application_id} ran in the meantime; nothing was changed: make sure that none "
            f"starts, then {again} again"
        )


def changed_offset(
    before: Mapping[TopicPartition, ClientPartition | None], now: Mapping[TopicPartition, ClientPartition]
) -> str | None:
    """Return a clause about the first partition whose committed offset or its metadata is not as before; None if all are.

    A partition that had no committed offset must have none now, as an instance may also continue from its commit record.
    The metadata holds the batch, which every commit raises, also one that moves no offset.
    """
    for partition, known in before.items():
        found = now.get(partition)
        if _offset_and_metadata(found) != _offset_and_metadata(known):
            return (
                f"the committed offset of {partition} is {_format_committed(found)}, and was {_format_committed(known)} when "
                "the plan was made"
            )
    return None


def _offset_and_metadata(committed: ClientPartition | None) -> tuple[int, str | None] | None:
    return None if committed is None else (committed.offset, committed.metadata)


def _format_committed(found: ClientPartition | None) -> str:
    if found is None:
        return "none"
    metadata = OffsetMetadata.decode(found.metadata)
    return f"{found.offset} ({'of no batch' if metadata is None else f'batch {metadata.batch}'})"


def _committed_now(
    clients: Clients, application_id: str, before: Collection[TopicPartition]
) -> dict[TopicPartition, ClientPartition]:
    """Return the offsets that are committed while those of this transaction are pending. Blocks."""
    timeout_s = stalled_after(clients.settings)
    return retry_until_stable(
        lambda: committed_offsets(
            clients.client_config, application_id, list(before), timeout_s, IsolationLevel.READ_UNCOMMITTED
        ),
        application_id,
        timeout_s,
    )


def _metadata(record: CommitRecord) -> str:
    return OffsetMetadata(record.batch, record.stream_times, record.topology_version).encode()


def _require_alone(clients: Clients, application_id: str, again: str) -> None:
    if found := members(clients.settings, clients.admin, application_id):
        raise PreflightFailed(
            f"{', '.join(found)} joined the group of {application_id} in the meantime: stop it, then {again} again; "
            "nothing was changed"
        )
