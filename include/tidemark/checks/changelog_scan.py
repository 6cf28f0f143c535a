"""A bounded read of one partition of a changelog: offsets, times, keys and sizes of records, without their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.committed_reader import is_passing, read_committed_consumer
from tidemark.names import TopicPartition

_FETCH_RECORDS, _WAIT_S = 20_000, 0.2


@dataclass
class Scan:
    """The records of `partition` between `from_offset` and `next_offset`, as columns of equal length, by offset.

    The scan was to reach `until_offset`: if it ends before, an open transaction hides the rest, or `most_records` were
    read. `sizes_bytes` count key and value.
    """

    partition: TopicPartition
    from_offset: int
    next_offset: int
    until_offset: int
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)
    tombstones: list[bool] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Return how many records were read."""
        return len(self.offsets)

    @property
    def is_whole(self) -> bool:
        """Return whether the scan reached its end."""
        return self.next_offset >= self.until_offset


def scan_changelog(
    client_config: Mapping[str, Any],
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    most_records: int,
    stalled_after_s: float,
) -> Scan:
    """Read committed records until `until_offset`, `most_records`, or until none comes for `stalled_after_s`. Blocks.

    Raises `OutcomeUnknown` if the broker does not answer.
    """
    found = Scan(partition, from_offset, from_offset, until_offset)
    if from_offset >= until_offset:
        return found
    consumer = read_committed_consumer(client_config, f"tidemark-scan-{partition.topic}")
    try:
        consumer.assign([ClientPartition(partition.topic, partition.partition, from_offset)])
        # Counted, not measured: a process that has stood still has not waited.
        waited_s = 0.0
        while not found.is_whole and found.records < most_records and waited_s < stalled_after_s:
            before = found.next_offset
            most = min(_FETCH_RECORDS, most_records - found.records)
            for message in consumer.consume(most, timeout=_WAIT_S):
                _take(found, message)
            waited_s = 0.0 if found.next_offset != before else waited_s + _WAIT_S
        return found
    except KafkaException as error:
        raise OutcomeUnknown(f"failed to read {partition} at offset {from_offset}: {error}") from error
    finally:
        consumer.close()


def _take(found: Scan, message: Any) -> None:
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            found.next_offset = max(found.next_offset, message.offset())
        elif not is_passing(error):
            raise KafkaException(error)
        return
    if message.offset() >= found.until_offset:
        found.next_offset = found.until_offset
        return
    key, value = message.key() or b"", message.value()
    found.offsets.append(message.offset())
    found.timestamps_ms.append(message.timestamp()[1])
    found.keys.append(key)
    found.sizes_bytes.append(len(key) + len(value or b""))
    found.tombstones.append(value is None)
    found.next_offset = message.offset() + 1
