"""Updates: what one batch changes in one task. Prepared before the transaction, written in it, applied after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.clock import NOT_MEASURED, Period
from tidemark.kafka.messages import Message
from tidemark.names import TaskId
from tidemark.stores.pending import StoreReads
from tidemark.stores.protocol import Writes
from tidemark.stream_times import StreamTimes


@dataclass(frozen=True)
class StoreUpdate:
    """New values of one store. `changelog` is the topic to which they are logged; None if they are not logged.

    `reads` are the reads of the store that led to them.
    """

    store: str
    changelog: str | None
    writes: tuple[Writes, ...]
    reads: StoreReads = field(default_factory=StoreReads, compare=False)

    @property
    def records(self) -> int:
        """The number of keys that change."""
        return sum(len(write.keys) for write in self.writes)


UNPARSABLE = "unparsable"
KEY_NOT_TEXT = "key is not UTF-8"
WRONG_KEY_LENGTH = "wrong key length"
NO_KEY = "no key"
IMPOSSIBLE_TIMESTAMP = "impossible timestamp"
KEY_DIFFERS = "key differs"
REFUSED_BY_SQL = "refused by SQL"
"""Reasons of dead letters for records that cannot be read: nothing of such a record is processed."""

TOO_LARGE = "too large for the sink"
REFUSED = "refused by user code"
UNWRITABLE_KEY = "key cannot be written"
UNWRITABLE_VALUE = "value cannot be written"
OF_PROCESSED_RECORDS = (TOO_LARGE, REFUSED, UNWRITABLE_KEY, UNWRITABLE_VALUE)
"""Reasons of dead letters for rows or outputs: their record was read, and its other results are processed."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Output:
    """Records for one sink topic. Without `partition`, murmur2 of the key decides; a record without a key goes to any."""

    topic: str
    messages: Sequence[Message]
    partition: int | None = None


@dataclass(frozen=True)
class DeadLetter:
    """A record that cannot be processed, as it was read, or an output of one that cannot be sent, with the reason.

    `offset` is None if it comes from no record of the batch, such as a row that a callback forwarded. `timestamp_ms` is the
    record's Kafka timestamp, None if it is unknown. `details` are additional headers of the dead letter.
    """

    reason: str
    topic: str
    partition: int
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None = None
    details: Headers = ()


@dataclass(frozen=True)
class TaskUpdate:
    """Everything that one batch changes in one task. `sources` are [start, end) offsets of the task's partition by topic.

    `wall_ms` is the clock at which it was prepared, and `prepared` the time that this took.
    """

    task: TaskId
    batch: int
    sources: Mapping[str, tuple[int, int]]
    stream_times: StreamTimes
    rows: int
    late_rows: int
    bad_rows: int
    filtered_rows: int
    stores: tuple[StoreUpdate, ...]
    outputs: tuple[Output, ...]
    dead_letters: tuple[DeadLetter, ...]
    wall_ms: int
    prepared: Period = field(default=NOT_MEASURED, compare=False)

    @property
    def changes_something(self) -> bool:
        """True if a tick has anything to commit: a record to send, or a write to a store, logged or not."""
        return bool(self.records or self.writes)

    @property
    def records(self) -> int:
        """The number of records of this task in the transaction, without its commit record."""
        return (
            sum(update.records for update in self.stores if update.changelog is not None)
            + sum(len(output.messages) for output in self.outputs)
            + len(self.dead_letters)
        )

    @property
    def writes(self) -> int:
        """The number of updates of stores, logged or not: what remains of the records when each key is written once."""
        return sum(update.records for update in self.stores)

    @property
    def cached_bytes(self) -> int:
        """The size of the keys and values of those updates."""
        return sum(
            sum(map(len, write.keys)) + sum(len(value) for value in write.values if value is not None)
            for update in self.stores
            for write in update.writes
        )

    def sink_counts(self, dlq: str) -> Mapping[str, int]:
        """Return the number of records by sink topic; `dlq` is the topic of dead letters."""
        counts: dict[str, int] = {}
        for output in self.outputs:
            counts[output.topic] = counts.get(output.topic, 0) + len(output.messages)
        if self.dead_letters:
            counts[dlq] = len(self.dead_letters)
        return counts
