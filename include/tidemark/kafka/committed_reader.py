"""Reading of one changelog partition from an offset to an end that was fixed before.

The end is a read_uncommitted end offset, the reader is read_committed, and the end is reached when the *next offset*
reaches it: transaction markers, gaps and aborted records have offsets too (see invariant: end of a restore). librdkafka
reports the next offset in its end-of-partition event, which a read_committed reader gets at the last stable offset,
again each time that has advanced.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.names import TopicPartition
from tidemark.settings import Settings

# 2 000 records fit into a processor's cache, are handled twice as fast as 50 000, and make threads wait less for each other.
_FETCH_RECORDS = 2_000
_FIRST_S, _MORE_S = 0.2, 0.01
# Transaction markers in a row: one of each commit, and some of transactions that were aborted.
_LOOKED_BACK = 100
_KEY: Any = Message.key
_VALUE: Any = Message.value
_OFFSET: Any = Message.offset


@dataclass(frozen=True)
class ChangelogBatch:
    """Records in order; a value of None is a tombstone. The next read begins at `next_offset`."""

    keys: list[bytes]
    values: list[bytes | None]
    next_offset: int


def read_committed_consumer(client_config: Mapping[str, Any], name: str, queued_kbytes: int = 65_536) -> Consumer:
    """Return a consumer without a group that reports the next offset at a partition's end and never skips deleted offsets.

    `queued_kbytes` bounds what it fetches ahead. Raises `OutcomeUnknown` if the client cannot be started, such as without a
    thread for it.
    """
    config = {
        **client_config,
        "group.id": name,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        # A client that has enough queued fetches again after this time; the default, a second, limits it to 100 000
        # records a second.
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": queued_kbytes,
    }
    try:
        return Consumer(config)
    except KafkaException as error:
        raise OutcomeUnknown(f"the client {name} cannot be started: {error}") from error


def fetched(consumer: Consumer) -> list[Message]:
    """Return the next messages, among them events and errors; none if nothing arrives for 0.2 s. Blocks."""
    # In two steps, because the client waits for the whole time-out unless it gets all the records that it was asked for.
    messages = consumer.consume(1, timeout=_FIRST_S)
    if messages:
        messages += consumer.consume(_FETCH_RECORDS - 1, timeout=_MORE_S)
    return messages


def is_passing(error: KafkaError) -> bool:
    """Whether a reader without a group can continue after this error.

    The client looks for the coordinator of the group that it has to name, whether or not this user is allowed to use
    the group.
    """
    return bool(error.retriable()) or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def read_committed_until(
    client_config: Mapping[str, Any],
    partition: TopicPartition,
    from_offset: int,
    end_offset: int,
    *,
    stalled_after_s: float,
    should_continue: Callable[[], bool],
) -> Iterator[ChangelogBatch]:
    """Yield batches of a changelog until the next offset reaches `end_offset` or `should_continue()` returns False. Blocks.

    Records at or after `end_offset` are not returned. Raises `OutcomeUnknown` if nothing is read for `stalled_after_s`:
    a transaction is open and does not end, or the broker cannot be reached.
    """
    for records, next_offset in messages_until(
        client_config,
        partition,
        from_offset,
        end_offset,
        stalled_after_s=stalled_after_s,
        should_continue=should_continue,
    ):
        # There are millions of records, so the loop over them is inside one call of C code.
        yield ChangelogBatch(list(map(_KEY, records)), list(map(_VALUE, records)), next_offset)


def messages_until(
    client_config: Mapping[str, Any],
    partition: TopicPartition,
    from_offset: int,
    end_offset: int,
    *,
    stalled_after_s: float,
    should_continue: Callable[[], bool],
) -> Generator[tuple[list[Message], int], None, None]:
    """Yield the client's own messages and the next offset after them, as `read_committed_until` does."""
    if from_offset >= end_offset:
        return
    consumer = read_committed_consumer(client_config, f"tidemark-read-{partition.topic}")
    try:
        yield from _read_range(consumer, partition, from_offset, end_offset, stalled_after_s, should_continue)
    finally:
        consumer.close()


@contextmanager
def range_reader(
    client_config: Mapping[str, Any], name: str, *, stalled_after_s: float
) -> Iterator[Callable[[TopicPartition, int, int], Iterator[ChangelogBatch]]]:
    """Lend a function that yields the committed records of [start, end) of a partition, as `read_committed_until` does.

    All its calls share one client, because a client takes longer to start than a few records to read: only the last call may
    still be read from.
    """
    consumer = read_committed_consumer(client_config, name)

    def read(partition: TopicPartition, start: int, end: int) -> Iterator[ChangelogBatch]:
        for records, next_offset in _read_range(consumer, partition, start, end, stalled_after_s, lambda: True):
            yield ChangelogBatch(list(map(_KEY, records)), list(map(_VALUE, records)), next_offset)

    try:
        yield read
    finally:
        consumer.close()


def _read_range(
    consumer: Consumer,
    partition: TopicPartition,
    from_offset: int,
    end_offset: int,
    stalled_after_s: float,
    should_continue: Callable[[], bool],
) -> Iterator[tuple[list[Message], int]]:
    try:
        consumer.assign([ClientPartition(partition.topic, partition.partition, from_offset)])
        next_offset = from_offset
        moved_at = time.monotonic()
        while next_offset < end_offset:
            if not should_continue():
                return
            before = next_offset
            records, next_offset = _taken(fetched(consumer), next_offset, end_offset)
            if next_offset != before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > stalled_after_s:
                raise _stalled(partition, next_offset, end_offset, stalled_after_s)
            if records or next_offset != before:
                yield records, next_offset
    except KafkaException as error:
        raise OutcomeUnknown(f"reading {partition} from offset {from_offset} failed: {error}") from error


def messages_of_ranges(
    client_config: Mapping[str, Any],
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    stalled_after_s: float,
) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Yield the committed records of [start, end) of several partitions, in order within each partition. Blocks.

    One client reads them all, because a client takes longer to start than a few records to read. Raises
    `OutcomeUnknown` as `read_committed_until` does, if none of the partitions advances.
    """
    left = {partition: start for partition, (start, end) in ranges.items() if start < end}
    if not left:
        return
    consumer = read_committed_consumer(client_config, f"tidemark-read-{next(iter(left)).topic}")
    try:
        consumer.assign([ClientPartition(p.topic, p.partition, start) for p, start in left.items()])
        moved_at = time.monotonic()
        while left:
            before = dict(left)
            for partition, messages in _by_partition(fetched(consumer)).items():
                if partition is None:
                    _taken(messages, 0, 0)
                elif partition in left:
                    end_offset = ranges[partition][1]
                    records, next_offset = _taken(messages, left[partition], end_offset)
                    left[partition] = next_offset
                    if next_offset >= end_offset:
                        del left[partition]
                    if records:
                        yield partition, records
            if left != before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > stalled_after_s:
                partition, next_offset = next(iter(left.items()))
                raise _stalled(partition, next_offset, ranges[partition][1], stalled_after_s)
    except KafkaException as error:
        raise OutcomeUnknown(f"reading {', '.join(map(str, left))} failed: {error}") from error
    finally:
        consumer.close()


def last_record_ends(
    client_config: Mapping[str, Any],
    offsets: Mapping[TopicPartition, tuple[int, int]],
    *,
    stalled_after_s: float,
) -> dict[TopicPartition, int]:
    """Return the next offset after the last committed record before an offset. Blocks.

    `offsets` has by partition the oldest offset that exists, and the offset to look before, which must not be after the last
    stable offset. Looks at the 100 offsets before it; without a record in them, the offset itself is returned. Raises
    `OutcomeUnknown` as `read_committed_until` does.
    """
    found = {partition: offset for partition, (_, offset) in offsets.items()}
    ranges = {p: (max(oldest, offset - _LOOKED_BACK), offset) for p, (oldest, offset) in offsets.items()}
    for partition, messages in messages_of_ranges(client_config, ranges, stalled_after_s=stalled_after_s):
        found[partition] = _OFFSET(messages[-1]) + 1
    return found


def first_record_ms(
    client_config: Mapping[str, Any],
    partition: TopicPartition,
    from_offset: int,
    end_offset: int,
    *,
    stalled_after_s: float,
    should_continue: Callable[[], bool],
) -> int | None:
    """Return the timestamp of the first committed record of [from_offset, end_offset), in epoch milliseconds.

    Returns None if there is none or `should_continue()` returns False. Blocks; raises as `read_committed_until`.
    """
    found = messages_until(
        client_config,
        partition,
        from_offset,
        end_offset,
        stalled_after_s=stalled_after_s,
        should_continue=should_continue,
    )
    with closing(found):
        for records, _ in found:
            if records:
                return int(records[0].timestamp()[1])
    return None


def _stalled(partition: TopicPartition, next_offset: int, end_offset: int, stalled_after_s: float) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{partition} has not advanced from offset {next_offset} of {end_offset} for {stalled_after_s:.0f} s: a transaction is "
        "open, or the broker cannot be reached"
    )


def _by_partition(messages: list[Message]) -> dict[TopicPartition | None, list[Message]]:
    """Return the messages of each partition. Errors that belong to no partition are found under None."""
    found: dict[TopicPartition | None, list[Message]] = {}
    for message in messages:
        topic, number = message.topic(), message.partition()
        place = None if topic is None or number is None or number < 0 else TopicPartition(topic, number)
        found.setdefault(place, []).append(message)
    return found


def _taken(messages: list[Any], next_offset: int, end_offset: int) -> tuple[list[Any], int]:
    """Return the records below `end_offset`, and the next offset after these messages. Raises `KafkaException`."""
    for message in [message for message in messages if message.error() is not None]:
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            next_offset = max(next_offset, message.offset())
        elif not is_passing(error):
            raise KafkaException(error)
        messages.remove(message)
    if not messages:
        return messages, next_offset
    if messages[-1].offset() >= end_offset:
        return messages[: bisect_left(messages, end_offset, key=_OFFSET)], end_offset
    return messages, max(next_offset, messages[-1].offset() + 1)


def larger(batches: Iterable[ChangelogBatch], records: int) -> Iterator[ChangelogBatch]:
    """Yield the same records in batches of at least `records`, except for the last batch."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    next_offset = None
    for batch in batches:
        keys += batch.keys
        values += batch.values
        next_offset = batch.next_offset
        if len(keys) >= records:
            yield ChangelogBatch(keys, values, next_offset)
            keys, values, next_offset = [], [], None
    if next_offset is not None:
        yield ChangelogBatch(keys, values, next_offset)


def stalled_after(settings: Settings) -> float:
    """Return the seconds after which a reader that makes no progress gives up.

    This is longer than the transaction of a dead instance can stay open: its time-out plus the broker's scan interval
    (10 s).
    """
    return (settings.transaction_timeout_ms + 10_000 + settings.broker_timeout_ms) / 1000
