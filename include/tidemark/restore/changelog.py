"""Reading one changelog partition from an offset to an end that was fixed before (rule 1).

The end is the read_uncommitted end, the reading is read_committed, and the end is reached by *next offset*: markers,
gaps and aborted records count. librdkafka tells the next offset in its end-of-partition event, which for a
read_committed reader comes at the last stable offset and again each time that has moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.names import TopicPartition

_FETCH_RECORDS = 50_000


@dataclass(frozen=True)
class ChangelogBatch:
    """Records in order; None is a tombstone. Reading goes on at `next_offset`."""

    keys: list[bytes]
    values: list[bytes | None]
    next_offset: int


def read_committed_consumer(client_config: Mapping[str, Any], name: str) -> Consumer:
    """A consumer that joins no group, tells the next offset at a partition's end, and never skips what is deleted."""
    return Consumer(
        {
            **client_config,
            "group.id": name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65_536,
        }
    )


def read_committed_until(
    client_config: Mapping[str, Any],
    partition: TopicPartition,
    from_offset: int,
    end_offset: int,
    *,
    stalled_after_s: float,
    go_on: Callable[[], bool],
) -> Iterator[ChangelogBatch]:
    """Batches of a changelog until the next offset reaches `end_offset`, or `go_on()` says no. Nothing beyond it is given.

    Raises `OutcomeUnknown` when nothing moves for `stalled_after_s`: an open transaction that never ends, or no broker.
    """
    if from_offset >= end_offset:
        return
    consumer = read_committed_consumer(client_config, f"tidemark-read-{partition.topic}")
    try:
        consumer.assign([ClientPartition(partition.topic, partition.partition, from_offset)])
        next_offset = from_offset
        moved_at = time.monotonic()
        while next_offset < end_offset:
            if not go_on():
                return
            messages: Any = consumer.consume(_FETCH_RECORDS, timeout=0.2)
            keys: list[bytes] = []
            values: list[bytes | None] = []
            before = next_offset
            for message in messages:
                error = message.error()
                if error is None and message.offset() >= end_offset:
                    next_offset = end_offset
                    break
                if error is None:
                    keys.append(message.key())
                    values.append(message.value())
                    next_offset = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    next_offset = max(next_offset, message.offset())
                elif not error.retriable():
                    raise KafkaException(error)
            if next_offset != before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > stalled_after_s:
                raise OutcomeUnknown(
                    f"{partition} stands still at {next_offset} of {end_offset} for {stalled_after_s:.0f} s: a transaction "
                    "is open, or the broker is away"
                )
            if keys or next_offset != before:
                yield ChangelogBatch(keys, values, next_offset)
    except KafkaException as error:
        raise OutcomeUnknown(f"reading {partition} at {from_offset}: {error}") from error
    finally:
        consumer.close()
