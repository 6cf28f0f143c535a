"""Suppress: windows wait in a buffer until they have closed, so that each emits one final result.

It follows Kafka Streams' `KTableSuppressProcessorSupplier` row by row. A window is closed when its end plus the grace is not
later than the newest timestamp that has reached the node. A row for a closed window is emitted at once: only the aggregation
decides what is late.

The buffer is a logged store (see invariant: stream time per node). A key is the window end, eight bytes big-endian, the key's
bytes, and the window start, eight bytes big-endian: this is the order in which windows close. A value is the row as JSON, its
timestamp `__ts`, and last `__gone`, which is true if the row is the deletion of its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import BufferFull
from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.forks import record_of
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.columns import (
    TIME_BYTES,
    big_endian,
    flags,
    in_sequence,
    last_sequence,
    make_rows,
    numbers,
)
from tidemark.tasks.operators.results import WINDOW_END, WINDOW_START
from tidemark.tasks.render import json_records
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, decode_rows, value_schema
from tidemark.topology.plan import Column, Suppress, WhenFull

GONE = "__gone"
"""The column of a waiting row that says whether it is the deletion of its window."""
_MARKS = (Column(TIMESTAMP, "BIGINT"), Column(GONE, "BOOLEAN"))
_GONE_END = b'"__gone":true}'

Entries = list[tuple[bytes, bytes]]
"""Keys and values of the buffer."""


@dataclass(frozen=True)
class SuppressOperator:
    """An `Operator` with one input: results of windows, where each update replaces the previous one.

    Emits windows in the order in which they close. If rows of several records arrive together, a window that closes in between
    and is updated later in the batch is emitted once, with that update. A full buffer emits its oldest windows early, after
    each row, or raises `BufferFull`. A window that was emitted early is emitted again when it closes only if an update came in
    between.

    A deletion is emitted only if windows may have been emitted early: otherwise no reader has seen what it deletes. A bounded
    buffer keeps and counts it like any row, as in Kafka Streams; an unbounded buffer does not keep it.
    """

    node: Suppress

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Apply the updates, emit the windows closed by `at.after_ms`, and enforce the bounds."""
        store = stores[self.node.stores[0].name]
        rows = in_sequence(inputs[0])
        keys, values = self._entries(rows)
        # Unless everything counts, only windows that close in this batch are read.
        stored = dict(store.range(WHOLE, b"", None if self._is_bounded else self._closed_before(at.after_ms)))
        if not self._is_bounded:
            stored |= {k: v for k, v in zip(keys, store.get_many(WHOLE, keys), strict=True) if v is not None}
        buffer = _Buffer(self, stored)
        emitted: Entries = []
        # A final result has the position of the record that closes its window, as if it came from that record.
        places: list[int] = []
        times_ms = np.maximum(np.maximum.accumulate(numbers(rows, TIMESTAMP)), at.before_ms).tolist()
        records = numbers(rows, SEQUENCE)
        later = {} if len(np.unique(record_of(records))) == 1 else {key: i for i, key in enumerate(keys)}
        for i, (key, value, time_ms) in enumerate(zip(keys, values, times_ms, strict=True)):
            buffer.put(key, value)
            for closed in buffer.closed(self._closed_before(time_ms)):
                if closed[0] == key or later.get(closed[0], -1) < i:
                    emitted.append(closed)
            emitted += buffer.surplus()
            places += [int(records[i])] * (len(emitted) - len(places))
        emitted += buffer.closed(self._closed_before(at.after_ms))
        places += [last_sequence(inputs) or 0] * (len(emitted) - len(places))
        buffer.write(keys, store)
        kept = [
            (entry, place)
            for entry, place in zip(emitted, places, strict=True)
            if self.node.when_full is not WhenFull.SHUT_DOWN or not _is_gone(entry[1])
        ]
        return Emitted(self._rows([entry for entry, _ in kept], [place for _, place in kept]))

    @property
    def _is_bounded(self) -> bool:
        return self.node.max_records is not None or self.node.max_bytes is not None

    def _entries(self, rows: Rows) -> tuple[list[bytes], list[bytes]]:
        """Return the rows as keys and values of the buffer."""
        if not rows.num_rows:
            return [], []
        if rows.column(WINDOW_END).null_count or rows.column(WINDOW_START).null_count:
            raise ValueError(
                f"{self.node.node}: a row, deleted or not, must contain its {WINDOW_START} and {WINDOW_END}"
            )
        keys = pc.binary_join_element_wise(
            big_endian(numbers(rows, WINDOW_END)),
            rows.column(KEY).combine_chunks().cast(pa.binary()),
            big_endian(numbers(rows, WINDOW_START)),
            b"",
        )
        fields = [(name, rows.column(name).combine_chunks()) for name in value_schema(self.node.columns).names]
        fields += [(TIMESTAMP, rows.column(TIMESTAMP).combine_chunks()), (GONE, rows.column(DELETED).combine_chunks())]
        return bytes_list(keys), bytes_list(json_records(fields))

    def _closed_before(self, time_ms: int) -> bytes:
        """Return a bound that is greater than every key of a window closed at that time."""
        first_open_end = time_ms - self.node.grace_ms + 1
        if time_ms == NO_STREAM_TIME or first_open_end <= 0:
            return b""
        return first_open_end.to_bytes(TIME_BYTES, "big")

    def _rows(self, entries: Entries, places: Sequence[int]) -> Rows:
        held = decode_rows([value for _, value in entries], (*self.node.columns, *_MARKS))
        return make_rows(
            self.node.columns,
            keys=pa.array([key[TIME_BYTES:-TIME_BYTES] for key, _ in entries], pa.binary()),
            timestamps=numbers(held, TIMESTAMP),
            sequence=np.array(places, dtype=np.int64),
            deleted=flags(held, GONE),
            values={name: held.column(name) for name in value_schema(self.node.columns).names},
        )


class _Buffer:
    """The waiting windows, while the rows of a batch are processed."""

    def __init__(self, operator: SuppressOperator, stored: dict[bytes, bytes]) -> None:
        self._node = operator.node
        self._keeps_gone = operator.node.max_records is not None or operator.node.max_bytes is not None
        self._stored = stored
        self._held = dict(stored)
        self._size_bytes = sum(len(key) + len(value) for key, value in stored.items())
        self._order = sorted(stored)
        """A heap of all keys that are held, and of some that are no longer held."""

    def put(self, key: bytes, value: bytes) -> None:
        """Let a row replace the waiting row of its key."""
        before = self._held.pop(key, None)
        if before is not None:
            self._size_bytes -= len(key) + len(before)
        if _is_gone(value) and not self._keeps_gone:
            return
        if before is None:
            heappush(self._order, key)
        self._held[key] = value
        self._size_bytes += len(key) + len(value)

    def closed(self, limit: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Remove the rows below a key, and yield them in order."""
        while self._order and self._order[0] < limit:
            yield from self._take()

    def surplus(self) -> Iterator[tuple[bytes, bytes]]:
        """Remove the oldest rows until the bounds hold, and yield them. Raises `BufferFull` if the node requires that."""
        node = self._node
        while (node.max_records is not None and len(self._held) > node.max_records) or (
            node.max_bytes is not None and self._size_bytes > node.max_bytes
        ):
            if node.when_full is WhenFull.SHUT_DOWN:
                bounds = ((node.max_records, "records"), (node.max_bytes, "bytes"))
                allowed = " and ".join(f"{bound} {unit}" for bound, unit in bounds if bound is not None)
                raise BufferFull(
                    f"{node.node}: {len(self._held)} open windows of {self._size_bytes} bytes wait in "
                    f"'{node.stores[0].name}', which may hold {allowed}; raise the bound, shorten the grace, or let it "
                    f"emit early when full"
                )
            yield from self._take()

    def write(self, keys: Sequence[bytes], store: PendingStore) -> None:
        """Write the changes."""
        touched = dict.fromkeys([*(key for key in self._stored if key not in self._held), *keys])
        puts = {key: self._held.get(key) for key in touched if key in self._held or key in self._stored}
        store.put_many(WHOLE, list(puts), list(puts.values()))

    def _take(self) -> Iterator[tuple[bytes, bytes]]:
        key = heappop(self._order)
        value = self._held.pop(key, None)
        if value is not None:
            self._size_bytes -= len(key) + len(value)
            yield key, value


def _is_gone(value: bytes) -> bool:
    return value.endswith(_GONE_END)
