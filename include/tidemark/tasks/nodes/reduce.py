"""Folding rows into one per key, and window, by a user's Python function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import InvalidTopology
from tidemark.stores.layout import window_keys
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.code import load_code
from tidemark.tasks.nodes.results import WINDOW_END, WINDOW_START
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.records import Row, from_dicts, rows_of, to_dicts
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, decode_rows, encode_rows, no_rows, value_schema
from tidemark.topology.plan import Reduce, Window
from tidemark.topology.stores import window_span_ms


@dataclass
class _Fold:
    """What one key, in one window, comes to: `row` None is no value."""

    key: str
    start: int | None
    timestamp: int
    row: Row | None = None


class ReduceOperator:
    """An `Operator` over one input of rows; deleted rows are passed over, as Kafka Streams passes over null values.

    The function sees a key's rows in the order of `__seq`. The store keeps its results as rows (`StoreSpec.columns`).
    One row per touched key and window is emitted at the batch's end, `__ts` the newest of the batch's rows in it, ordered
    by `__ts`, key, window. A function that returns None deletes: the emitted row is deleted, and keeps its window. What
    the function raises goes on, with a note of node and key; a result that is no row raises `InvalidTopology`.
    """

    def __init__(self, node: Reduce) -> None:
        self.node = node
        (self._store,) = node.stores
        self._where = f"{node.node}: {node.function}"
        self._function = load_code(node.function, node.node)
        self._initializer = load_code(node.initializer, node.node) if node.initializer else None

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Fold the rows that are in time; a row counts as late once for each closed window that it falls in."""
        (given,) = inputs
        rows = given.filter(pc.invert(given.column(DELETED))).sort_by(SEQUENCE)
        late = 0
        folds: dict[tuple[str, int | None], _Fold] = {}
        work: list[tuple[_Fold, Row]] = []
        listed = zip(rows.column(KEY).to_pylist(), rows.column(TIMESTAMP).to_pylist(), to_dicts(rows), strict=True)
        for key, timestamp, row in listed:
            for start in self._starts(timestamp):
                if self._is_closed(start, at):
                    late += 1
                    continue
                fold = folds.setdefault((key, start), _Fold(key, start, timestamp))
                fold.timestamp = max(fold.timestamp, timestamp)
                work.append((fold, row))
        if not work:
            return Emitted(no_rows(self.node.columns), late)
        store = stores[self._store.name]
        addresses = self._addresses(list(folds.values()))
        self._read(store, addresses)
        for fold, row in work:
            # A row may be folded into several windows: each gets its own, in case the function changes it.
            fold.row = self._next(fold, dict(row))
        self._write(store, addresses)
        return Emitted(self._emitted(list(folds.values())), late)

    def _starts(self, timestamp: int) -> Iterator[int | None]:
        window = self.node.window
        if window is None:
            yield None
            return
        first = max(0, timestamp - window.size_ms + window.advance_ms) // window.advance_ms * window.advance_ms
        yield from range(first, timestamp + 1, window.advance_ms)

    def _is_closed(self, start: int | None, at: BatchTime) -> bool:
        window = self.node.window
        if window is None or start is None or at.before_ms == NO_STREAM_TIME:
            return False
        return start + window_span_ms(window) <= at.before_ms

    def _next(self, fold: _Fold, row: Row) -> Row | None:
        try:
            if self._initializer is not None:
                old = self._initializer() if fold.row is None else fold.row
                result: Any = self._function(fold.key, row, old)
            else:
                result = row if fold.row is None else self._function(fold.row, row)
        except Exception as error:
            error.add_note(f"{self._where}, key {fold.key!r}, row {row}")
            raise
        if result is not None and not isinstance(result, dict):
            raise InvalidTopology(
                f"{self._where} gave {type(result).__name__}; return a dictionary of columns, or None"
            )
        return result

    def _addresses(self, folds: Sequence[_Fold]) -> dict[int, list[tuple[bytes, _Fold]]]:
        """By segment, each fold with its key in the store."""
        segment_ms = self._store.segment_ms
        if self.node.window is None or segment_ms is None:
            return {WHOLE: [(fold.key.encode(), fold) for fold in folds]}
        starts = [fold.start or 0 for fold in folds]
        keys = window_keys(pa.array([fold.key for fold in folds], pa.string()), np.array(starts, dtype=np.int64))
        by_segment: dict[int, list[tuple[bytes, _Fold]]] = {}
        for start, key, fold in zip(starts, keys, folds, strict=True):
            by_segment.setdefault(start // segment_ms, []).append((key, fold))
        return by_segment

    def _read(self, store: PendingStore, addresses: Mapping[int, list[tuple[bytes, _Fold]]]) -> None:
        for segment, pairs in addresses.items():
            values = store.get_many(segment, [key for key, _ in pairs])
            old = to_dicts(decode_rows(values, self._store.columns))
            for (_, fold), value, row in zip(pairs, values, old, strict=True):
                fold.row = None if value is None else row

    def _write(self, store: PendingStore, addresses: Mapping[int, list[tuple[bytes, _Fold]]]) -> None:
        for segment, pairs in addresses.items():
            rows = [fold.row for _, fold in pairs]
            values = from_dicts(rows, self._store.columns, self._where)
            gone = pa.array([row is None for row in rows])
            encoded = encode_rows(values.append_column(DELETED, gone), self._store.columns)
            store.put_many(segment, [key for key, _ in pairs], encoded)

    def _emitted(self, folds: list[_Fold]) -> Rows:
        folds.sort(key=lambda fold: (fold.timestamp, fold.key, fold.start or 0))
        window: Window | None = self.node.window
        kept = from_dicts([fold.row for fold in folds], self._store.columns, self._where)
        named: dict[str, Any] = dict(zip(kept.column_names, kept.columns, strict=True))
        keys = pa.array([fold.key for fold in folds], pa.string())
        gone = pa.array([fold.row is None for fold in folds])
        named[self.node.key_name] = keys
        if window is not None:
            starts = np.array([fold.start for fold in folds], dtype=np.int64)
            named |= {WINDOW_START: pa.array(starts), WINDOW_END: pa.array(starts + window.size_ms)}
        schema = value_schema(self.node.columns)
        values = pa.table([named[n].cast(t) for n, t in zip(schema.names, schema.types, strict=True)], schema)
        return rows_of(keys, pa.array([fold.timestamp for fold in folds], pa.int64()), gone, values)
