"""Base classes of user-written nodes: `Processor` takes single records, `ArrowProcessor` takes a whole batch.

A topology names the class by its import path. One instance of the class lives as long as its task, and may be replaced at any
time by a new one that continues from the stores: keep nothing that matters between two batches anywhere but in the stores. A
batch may also be discarded after it was processed, when its commit fails. Its changes to stores and the rows that it
forwarded are then undone, but the fields of the instance are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemark.topology.plan import Punctuate

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowProcessor", "Context", "KeyValueStore", "Processor", "Punctuate", "Record"]


class Record(NamedTuple):
    """One record. Times are epoch milliseconds.

    `key` is None if the record has no key. `row` holds the columns by name; it is None if the record has no value, which
    means that its key is deleted.
    """

    key: str | None
    row: dict[str, Any] | None
    timestamp_ms: int


class KeyValueStore(Protocol):
    """A store of rows by key, with the columns that the topology declares. Reads see the changes of the current batch.

    Usable only while a batch is processed and in punctuation callbacks; at other times every method raises `InvalidTopology`.
    A row that does not fit the store's columns raises `InvalidTopology`; a key that is not text raises `ValueError`, so the
    key of a record without one does, too.
    """

    def get(self, key: str) -> dict[str, Any] | None:
        """Return a copy of the key's row, or None if there is no such key."""

    def put(self, key: str, row: Mapping[str, Any] | None) -> None:
        """Set the key's row; None deletes the key, as in Kafka Streams. Columns that `row` does not contain become null."""

    def delete(self, key: str) -> None:
        """Delete the key. Do nothing if there is no such key."""

    def range(self, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the keys that begin with `prefix` and their rows, in the order of the keys' UTF-8 bytes."""

    def get_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> pa.Table:
        """Return the store's columns with one row per key, in the order of `keys`; all null for a missing key."""

    def put_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray, rows: pa.Table) -> None:
        """Set the rows of the keys. If a key occurs twice, its last row is kept."""


class Context(Protocol):
    """Access of a processor to its task. It is passed to `init` and stays valid as long as the processor."""

    @property
    def stream_time_ms(self) -> int:
        """The task's stream time in epoch milliseconds, or -1 before the first record.

        In `Processor.process` it includes the current record, as in Kafka Streams. In `ArrowProcessor.process` it is the
        stream time at the start of the batch, in callbacks that at the end of the batch.
        """

    def store(self, name: str) -> KeyValueStore:
        """Return one of the processor's stores. Raises `InvalidTopology` if the topology does not give it this store."""

    def forward(
        self,
        key: str | None,
        row: Mapping[str, Any] | None,
        timestamp_ms: int | None = None,
        sequence: int | None = None,
    ) -> None:
        """Emit a copy of a row to the nodes downstream, in the order of the calls. A row of None deletes the key there.

        Without `timestamp_ms` the row has the timestamp of the record, in a callback the time of the callback, and in
        `ArrowProcessor.process` the stream time at the end of the batch. Raises `ValueError` for a time that no record may
        have: below 0, as `stream_time_ms` is before the first record, or above 9223372036854775, which Spark cannot read.
        Raises `InvalidTopology` while no batch is processed, so also in `init`; if the topology declares no `emits`; or if it
        declares `keeps_key=True` and the key is not the record's. A row that does not fit the processor's columns raises
        `InvalidTopology` when the batch ends.

        `sequence` is the `__seq` of the record from which the row comes. Only `ArrowProcessor.process` may give it, because
        elsewhere it is known; without it, the row counts as a result of the last record. `InvalidTopology` is raised for one
        that no row of the batch has, and without one where `ArrowProcessor.process` must return `__seq`.
        """

    def schedule(self, every_ms: int, time: Punctuate, callback: Callable[[int], None]) -> None:
        """Call `callback` every `every_ms` with the current time, after the records of a batch. Only `init` may call this.

        The callback runs at most once per batch; calls that were missed are not repeated. By stream time it is due at 0 and
        at every multiple of `every_ms`, so the first record causes a call; its argument is the stream time at the end of the
        batch, and a restart neither loses nor repeats a call. By wall clock it is due for the first time `every_ms` after
        the task was opened, even without input; its argument is the wall clock. A call is done when its batch is committed:
        if the batch is discarded, the call is made again.

        Raises `InvalidTopology` after `init`.
        """


class Processor:
    """Takes records one by one, in the order of the task. Costs microseconds per record: see `ArrowProcessor` for batches."""

    def init(self, context: Context) -> None:
        """Keep the context, get stores and schedule callbacks. Called once, before the first record."""

    def close(self) -> None:
        """Release what `init` opened. Called once, when the task is closed or moves, also after an error.

        The stores cannot be used any more. It runs in a thread of its own, for which the instance waits only a few seconds,
        and at the same time as `close` of processors of other tasks, or `process` of those that stay. An exception is only
        logged. A process that is killed does not call it.
        """

    def process(self, record: Record) -> None:
        """Process one record. If this raises, the record becomes a dead letter, and its puts and forwards are undone.

        With `on_error="fail"` the instance ends instead, and nothing of the batch is committed. `InvalidTopology` always
        ends the instance: it means that the code does not match the topology.
        """
        raise NotImplementedError(f"{type(self).__name__}.process")


class ArrowProcessor:
    """Takes the rows of a batch as one Arrow table."""

    def init(self, context: Context) -> None:
        """Keep the context, get stores and schedule callbacks. Called once, before the first batch."""

    def close(self) -> None:
        """Release what `init` opened. Called once, when the task is closed or moves, also after an error.

        The stores cannot be used any more. It runs in a thread of its own, for which the instance waits only a few seconds,
        and at the same time as `close` of processors of other tasks, or `process` of those that stay. An exception is only
        logged. A process that is killed does not call it.
        """

    def process(self, rows: pa.Table) -> pa.Table | None:
        """Process the rows of a batch, at least one, in the order of the task. Return the rows to emit, or None.

        `rows` has the columns of the input and these: `__k` STRING, the key, null for a record without one; `__ts` BIGINT,
        the timestamp in epoch milliseconds; `__seq` BIGINT, ascending; `__deleted` BOOLEAN, true if the record deletes its
        key, in which case the columns of the input are null. The returned table needs `__k`, `__ts` and the processor's
        columns; a missing or null `__deleted` means false, and other columns are ignored. Rows are emitted in the order of
        their records; of one record, first those that are returned, in their order, then those that are forwarded. Raises
        `InvalidTopology` if a column is missing or has another type, if the topology declares no `emits`, or if it declares
        `keeps_key=True` and a key is not one of the batch's keys. A `__ts` that `Context.forward` would refuse has the effect
        of raising.

        A `__seq` in the returned table is the position of the record from which each row comes: one of those in `rows`,
        ascending. Without it, all rows count as results of the last record. A join, a windowed fold or `suppress` downstream
        needs it, and so does a topic that several paths write; without it the instance ends with `InvalidTopology`.

        If this raises, its puts and forwards are undone and each half of the rows is tried separately, until the rows that
        fail are found. These become dead letters, or end the instance, as for a `Processor`.
        """
        raise NotImplementedError(f"{type(self).__name__}.process")
