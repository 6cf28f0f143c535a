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
    """One record. `row` is its columns by name, or None where the record deletes its key. Times: epoch milliseconds."""

    key: str
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
        """The task's stream time at the batch's start, which lateness is judged by; in callbacks at its end. -1: none yet."""

    def store(self, name: str) -> KeyValueStore:
        """One of the processor's stores. Raises `InvalidTopology` for a name that the topology does not give it."""

    def forward(self, key: str, row: Mapping[str, Any] | None, timestamp_ms: int | None = None) -> None:
        """Emit a row to the nodes behind; None deletes the key there. Rows keep the order of the calls.

        `timestamp_ms` is the record's own unless given, in a callback the callback's, in `ArrowProcessor.process` the
        stream time at the batch's end. A row that does not fit the processor's columns raises `InvalidTopology` when the
        batch ends.
        """

    def schedule(self, every_ms: int, time: Punctuate, callback: Callable[[int], None]) -> None:
        """Call back at each multiple of `every_ms`, behind the batch's records; at most once per batch. Call it in `init`.

        Stream time: called when the batch moves stream time over one or more multiples, with the newest of them; so no
        restart loses or repeats one. The first batch with a record counts as having passed one. Wall clock: called when a
        multiple has passed since this instance's last batch or tick, with that multiple; a restart begins to wait anew.
        """


class Processor:
    """Takes records one by one, in the task's order. Costs microseconds a record: see `ArrowProcessor`."""

    def init(self, context: Context) -> None:
        """Called once, before any record: keep the context, get stores, schedule callbacks."""

    def process(self, record: Record) -> None:
        """One record. What it raises stops the instance: nothing of the batch is committed."""
        raise NotImplementedError(f"{type(self).__name__}.process")


class ArrowProcessor:
    """Takes a batch's rows as one Arrow table."""

    def init(self, context: Context) -> None:
        """Called once, before any batch: keep the context, get stores, schedule callbacks."""

    def process(self, rows: pa.Table) -> pa.Table | None:
        """A batch's rows, never empty, in the task's order; gives the rows to emit, or None.

        `rows` has the columns of the input, and `__k` STRING, the key; `__ts` BIGINT, the timestamp in epoch milliseconds;
        `__seq` BIGINT, ascending; `__deleted` BOOLEAN, the record deletes its key and its columns are null. What is given
        back needs `__k`, `__ts` and the processor's columns; `__deleted` is false where it is missing, others are ignored.
        The rows' order is kept. `InvalidTopology` if a column is missing or of another type.
        """
        raise NotImplementedError(f"{type(self).__name__}.process")
