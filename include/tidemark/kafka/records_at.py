"""Reads the records at given offsets of partitions, without Spark: those of sources that Spark has found to be bad.

Spark can return rows in parts (`toLocalIterator`), but it keeps the result of each part until the driver ends: Spark 4.2
registers the job of a part under its query, which has ended by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import fetched, is_passing, read_committed_consumer
from tidemark.names import TopicPartition
from tidemark.settings import Settings

_SEEK_RECORDS = 20_000
"""Gaps of more offsets are skipped by a seek. Smaller ones are read, because the client has fetched them already."""

_EPOCHS_S = 5.0


def leader_epochs_at(settings: Settings, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the epoch of the leader that has written the first record at or after each offset, committed or not. Blocks.

    Partitions that this user may not read, or that do not answer within five seconds, are left out.
    """
    found: dict[TopicPartition, int] = {}
    unread = set(offsets)
    if not unread:
        return found
    config = {**librdkafka_config(settings), "isolation.level": "read_uncommitted"}
    consumer = Consumer({**config, "group.id": "tidemark-epochs-at", "enable.auto.commit": False})
    try:
        consumer.assign([ClientPartition(p.topic, p.partition, at) for p, at in offsets.items()])
        deadline = time.monotonic() + _EPOCHS_S
        while unread and time.monotonic() < deadline:
            for message in fetched(consumer):
                error = message.error()
                if error is not None and error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    continue
                place = TopicPartition(str(message.topic()), int(message.partition() or 0))
                if place in unread and error is None and (epoch := message.leader_epoch()) is not None:
                    found[place] = epoch
                unread.discard(place)
    finally:
        consumer.close()
    return found


def records_at(
    client_config: Mapping[str, Any],
    offsets: Mapping[TopicPartition, Sequence[int]],
    stalled_after_s: float,
) -> Iterator[Message]:
    """Yield the committed record at each offset. The offsets of a partition must ascend. Blocks.

    Raises `OutcomeUnknown` if a record no longer exists, or if nothing arrives for `stalled_after_s`.
    """
    consumer = read_committed_consumer(client_config, "tidemark-records-at")
    try:
        for place, wanted in offsets.items():
            if wanted:
                yield from _of_partition(consumer, place, wanted, stalled_after_s)
    except KafkaException as error:
        raise OutcomeUnknown(f"failed to read records by their offsets: {error}; try again") from error
    finally:
        consumer.close()


def _of_partition(
    consumer: Consumer, place: TopicPartition, wanted: Sequence[int], stalled_after_s: float
) -> Iterator[Message]:
    consumer.assign([ClientPartition(place.topic, place.partition, wanted[0])])
    number, moved_at = 0, time.monotonic()
    while True:
        at = wanted[number]
        for message in fetched(consumer):
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF and not is_passing(error):
                    raise KafkaException(error)
                continue
            at, moved_at = int(message.offset() or 0), time.monotonic()
            if at > wanted[number]:
                raise OutcomeUnknown(
                    f"the record at {place} offset {wanted[number]} has been deleted since it was found to be bad: the topic's "
                    "retention deletes records that are not processed yet; raise it, then start again"
                )
            if at == wanted[number]:
                yield message
                number += 1
                if number == len(wanted):
                    return
        if time.monotonic() - moved_at > stalled_after_s:
            raise OutcomeUnknown(
                f"failed to read the record at {place} offset {wanted[number]}: nothing arrived for {stalled_after_s:.0f} s; "
                "check the broker"
            )
        if wanted[number] - at > _SEEK_RECORDS:
            consumer.seek(ClientPartition(place.topic, place.partition, wanted[number]))
