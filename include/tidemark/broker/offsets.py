"""Watermarks of many partitions in one call."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tidemark.errors import OutcomeUnknown
from tidemark.names import TopicPartition


class EndOffsets:
    """Asks brokers for offsets with the admin client; raises `OutcomeUnknown` when they do not answer in time."""

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s

    def of(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """read_uncommitted end offset of each partition. Blocks for one round trip."""
        return self._ask(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that exists in each partition."""
        return self._ask(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _ask(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        asked = {ClientPartition(p.topic, p.partition): spec for p in partitions}
        try:
            futures = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
            )
            return {
                TopicPartition(asked_for.topic, asked_for.partition): future.result().offset
                for asked_for, future in futures.items()
            }
        except KafkaException as error:
            raise OutcomeUnknown(f"brokers did not tell the offsets of {partitions[0]}: {error}") from error
