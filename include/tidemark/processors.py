"""What a user writes when no other node will do: a `Processor`, record by record, or an `ArrowProcessor`, a batch at a time.

A topology names the class by import path. One instance lives as long as its task and may be replaced at any time by a new
one that carries on from the stores: keep nothing else between two batches that matters. A batch may also be thrown away
after it was processed (a failed commit): its changes to stores and what it forwarded are then undone, the instance's own
fields are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.topology.plan import Punctuate

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowProcessor", "Context", "KeyValueStore", "Processor", "Punctuate", "Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `row` is its columns by name, or None where the record has no value, which deletes its key.

    `key` is None where the record has none. Times: epoch milliseconds.
    """

    key: str | None
    row: dict[str, Any] | None
    timestamp_ms: int


class KeyValueStore(Protocol):
    """A store of rows by key, with the columns that the topology gives it. Sees the batch's own changes at once.

    Usable while a batch is being processed and in punctuation callbacks; `RuntimeError` otherwise. A row that does not fit
    the store's columns raises `InvalidTopology`.
    """

    def get(self, key: str) -> dict[str, Any] | None:
        """A copy of the key's row; None where there is none."""

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Set the key's row; columns that are left out are null."""

    def delete(self, key: str) -> None:
        """Take the key out; nothing happens where there is none."""

    def range(self, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Keys that begin with `prefix` and their rows, in the order of the keys' UTF-8 bytes."""

    def get_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> pa.Table:
        """The store's columns, one row per key in the keys' order; nulls where there is no such key."""

    def put_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray, rows: pa.Table) -> None:
        """Set the rows of keys; of a key that stands twice the last counts."""


class Context(Protocol):
    """A processor's way to its task; given to `init`, valid as long as the instance."""

    @property
    def stream_time_ms(self) -> int:
        """The task's stream time; -1 if there is none yet.

        In `Processor.process` with the record itself and those before it, as in Kafka Streams; in
        `ArrowProcessor.process` at the batch's start; in callbacks at the batch's end.
        """

    def store(self, name: str) -> KeyValueStore:
        """One of the processor's stores. Raises `InvalidTopology` for a name that the topology does not give it."""

    def forward(self, key: str | None, row: Mapping[str, Any] | None, timestamp_ms: int | None = None) -> None:
        """Emit a row to the nodes downstream; None deletes the key there. Rows keep the order of the calls.

        `timestamp_ms` is the record's own unless given, in a callback the callback's time, in `ArrowProcessor.process`
        the stream time at the batch's end. Raises `InvalidTopology` for another key than the record's where the topology
        says `keeps_key=True`. A row that does not fit the processor's columns raises `InvalidTopology` when the batch ends.
        """

    def schedule(self, every_ms: int, time: Punctuate, callback: Callable[[int], None]) -> None:
        """Call back every `every_ms`, after the batch's records, with the time that it is then. Call it in `init`.

        At most one call per batch; calls that were missed are not made up for. Stream time: due at 0 and its multiples,
        so the first record calls back; called with the stream time at the batch's end. No restart loses or repeats a
        call. Wall clock: first due `every_ms` after the task was opened, also without input; called with the clock. A
        call counts as made when its batch is committed: a batch that is thrown away calls again.

        Raises `InvalidTopology` after `init`.
        """


class Processor:
    """Takes records one by one, in the task's order. Costs microseconds a record: see `ArrowProcessor`."""

    def init(self, context: Context) -> None:
        """Called once, before any record: keep the context, get stores, schedule callbacks."""

    def process(self, record: Record) -> None:
        """One record. If it raises, the record is a dead letter, and what was put and forwarded for it is undone.

        With `on_error="fail"` the instance ends instead, and nothing of the batch is committed. `InvalidTopology`, which says
        that the code and the topology do not agree, always ends it.
        """
        raise NotImplementedError(f"{type(self).__name__}.process")


class ArrowProcessor:
    """Takes a batch's rows as one Arrow table."""

    def init(self, context: Context) -> None:
        """Called once, before any batch: keep the context, get stores, schedule callbacks."""

    def process(self, rows: pa.Table) -> pa.Table | None:
        """A batch's rows, never empty, in the task's order; gives the rows to emit, or None.

        `rows` has the columns of the input, and `__k` STRING, the key, null for a record without one; `__ts` BIGINT, the
        timestamp in epoch milliseconds; `__seq` BIGINT, ascending; `__deleted` BOOLEAN, the record deletes its key and its
        columns are null. What is given back needs `__k`, `__ts` and the processor's columns; `__deleted` is false where it
        is missing, others are ignored. The rows' order is kept. `InvalidTopology` if a column is missing or of another
        type, or a key is none of the batch's where the topology says `keeps_key=True`.

        If it raises, what was put and forwarded is undone, and each half of the rows is tried by itself, until the rows
        are found for which it raises: these are dead letters, or end the instance, as for a `Processor`.
        """
        raise NotImplementedError(f"{type(self).__name__}.process")
