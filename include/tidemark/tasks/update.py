"""What one batch does to one task: prepared before the transaction, written in it, applied after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.names import TaskId
from tidemark.stores.protocol import Writes
from tidemark.stream_times import StreamTimes


@dataclass(frozen=True)
class StoreUpdate:
    """New values of one store; `changelog` is the topic they are logged to, None where they are not."""

    store: str
    changelog: str | None
    writes: tuple[Writes, ...]

    @property
    def records(self) -> int:
        """How many keys change."""
        return sum(len(write.keys) for write in self.writes)


UNPARSABLE = "unparsable"
KEY_NOT_TEXT = "key is not UTF-8"
NO_KEY = "no key"
IMPOSSIBLE_TIMESTAMP = "impossible timestamp"
"""Reasons of dead letters that are records which cannot be read: nothing of such a record is processed."""

TOO_LARGE = "too large for the sink"
REFUSED = "refused by user code"
OF_PROCESSED_RECORDS = (TOO_LARGE, REFUSED)
"""Reasons of dead letters that are rows or outputs: the record behind one was read, and what else comes of it goes on."""

Headers = tuple[tuple[str, bytes | None], ...]

Message = dict[str, Any]
"""A record of a topic: `key` and `value` (bytes or None), `timestamp` (epoch milliseconds), `headers` where it has some."""


@dataclass(frozen=True)
class Output:
    """Records for one sink topic. They go to `partition`, or where murmur2 of the key says, without a key to any."""

    topic: str
    messages: Sequence[Message]
    partition: int | None = None


@dataclass(frozen=True)
class DeadLetter:
    """One record that cannot be processed, as it was read, and why; or what came of one and cannot be sent.

    `offset` is None where no record of the batch is behind it, as for what a callback forwards. `timestamp_ms` is the
    record's Kafka timestamp, None where it is not known. `details` are more headers of the letter.
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
    """Everything one batch changes for one task. `sources` are [start, end) offsets of the task's partition by topic.

    `wall_ms` is the clock that it was prepared with.
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

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to commit for a tick: a record to send, or a write to a store, logged or not."""
        return bool(self.records or self.writes)

    @property
    def records(self) -> int:
        """Records that the transaction will hold for this task, its commit record aside."""
        return (
            sum(update.records for update in self.stores if update.changelog is not None)
            + sum(len(output.messages) for output in self.outputs)
            + len(self.dead_letters)
        )

    @property
    def writes(self) -> int:
        """Updates of stores, logged or not: what is left of the records once each key is written once (row B10)."""
        return sum(update.records for update in self.stores)

    @property
    def cached_bytes(self) -> int:
        """Keys and values of those updates."""
        return sum(
            sum(map(len, write.keys)) + sum(len(value) for value in write.values if value is not None)
            for update in self.stores
            for write in update.writes
        )

    def sink_counts(self, dlq: str) -> Mapping[str, int]:
        """Records by sink topic, the dead letters' among them."""
        counts: dict[str, int] = {}
        for output in self.outputs:
            counts[output.topic] = counts.get(output.topic, 0) + len(output.messages)
        if self.dead_letters:
            counts[dlq] = len(self.dead_letters)
        return counts
