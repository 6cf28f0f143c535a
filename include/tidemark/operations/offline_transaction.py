"""A transaction that a command commits while no instance runs: offsets and commit records of tasks together.

See invariant: commit records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitRecord
from tidemark.errors import BatchAborted, PreflightFailed, TidemarkError
from tidemark.kafka.group import members
from tidemark.kafka.member import GroupMetadata
from tidemark.names import commits_topic
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
    clients: Clients, application_id: str, producer: BatchProducer, records: Sequence[CommitRecord], again: str
) -> None:
    """Add the end offsets of every record to the open transaction, without membership in the group.

    The group coordinator accepts that, and ownership is safe because the group is empty (see invariant: ownership at
    commit), which is checked before and after. Raises `PreflightFailed`, which names the members that joined and
    what to do again (`again`, a verb).
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


def _metadata(record: CommitRecord) -> str:
    return OffsetMetadata(record.batch, record.stream_times, record.topology_version).encode()


def _require_alone(clients: Clients, application_id: str, again: str) -> None:
    if found := members(clients.settings, clients.admin, application_id):
        raise PreflightFailed(
            f"{', '.join(found)} joined the group of {application_id} in the meantime: stop it, then {again} again; "
            "nothing was changed"
        )
