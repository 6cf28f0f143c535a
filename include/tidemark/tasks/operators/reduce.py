"""Folding rows into one per key, and per window if there are windows, by a user's Python function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import InvalidTopology
from tidemark.stores.layout import window_keys
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.code import load_code
from tidemark.tasks.forks import record_of
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.columns import in_sequence, make_rows, numbers
from tidemark.tasks.operators.results import WINDOW_END, WINDOW_START
from tidemark.tasks.records import Row, StoredForm, from_dicts, to_dicts
from tidemark.tasks.refused_rows import NOT_THE_ROWS_FAULT, Refusals
from tidemark.tasks.rows import (
    DELETED,
    KEY,
    SEQUENCE,
    STORED_TIME,
    TIMESTAMP,
    UNKNOWN_MS,
    Rows,
    decode_rows,
    encode_rows,
    no_rows,
    value_schema,
)
from tidemark.topology.plan import Column, Reduce, Window
from tidemark.topology.stores import window_span_ms


@dataclass(frozen=True)
class _Result:
    """The result for one key and window; `place` is its `__seq`, `number` counts the results of the batch."""

    key: str
    start: int | None
    timestamp: int
    place: int
    record: int
    number: int
    row: Row | None


@dataclass
class _Fold:
    """The state of one key and window: a `row` of None is no value. `results` are those of its last record."""

    key: str
    start: int | None
    timestamp: int = UNKNOWN_MS
    row: Row | None = None
    results: list[_Result] = field(default_factory=list)

    def take(self, row: Row | None, timestamp: int, place: int, record: int, number: int) -> None:
        """Set the next result. Results of earlier records are no longer emitted."""
        self.row, self.timestamp = row, timestamp
        if self.results and self.results[-1].record != record:
            self.results.clear()
        self.results.append(_Result(self.key, self.start, timestamp, place, record, number, row))


class ReduceOperator:
    """An `Operator` with one input of rows; rows without a key are skipped.

    Deleted rows are skipped, too, except in windows: there the function is called with None, or a first value is None, as in
    Kafka Streams' `KStreamReduce`, `KStreamAggregate` and `KStreamWindowAggregate`. The function sees a key's rows in the
    order of `__seq`. The store keeps the results as rows (`StoreSpec.columns`) with their timestamps. If the key is
    one of these columns, it holds the key, whatever the function returns in it.

    For each changed key and window, the result of its last record is emitted, at the position of that record; `__ts` is the
    newest timestamp in the value. If that record produced several rows, as in a join, the result of each is emitted, as in
    Kafka Streams. A function that returns None deletes: the emitted row is deleted and keeps its window, and the next row
    starts from no value. A row for which the function raises is refused, in all of its windows, and so is a row whose result
    does not fit the columns. A result that is not a row raises `InvalidTopology`.
    """

    def __init__(self, node: Reduce) -> None:
        self.node = node
        # A second one keeps the order of the keys, if keys leave the first by age or number.
        self._store = node.stores[0]
        self._nulls: Row = dict.fromkeys(column.name for column in self._store.columns)
        self._has_key = Column(node.key_name, "STRING") in self._store.columns
        self._where = f"{node.node}: {node.function}"
        self._stored = StoredForm(self._store.columns, self._where)
        self._function = load_code(node.function, node.node)
        self._initializer = load_code(node.initializer, node.node) if node.initializer else None

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Fold the rows that are not late. A row counts as late once for each closed window that contains it."""
        (given,) = inputs
        rows = in_sequence(given.filter(pc.is_valid(given.column(KEY))))
        if self.node.window is None:
            rows = rows.filter(pc.invert(rows.column(DELETED)))
        late = 0
        folds: dict[tuple[str, int | None], _Fold] = {}
        work: list[tuple[list[_Fold], int, int, int, Row | None]] = []
        refused = Refusals(self.node.node)
        hidden = (rows.column(name).to_pylist() for name in (KEY, TIMESTAMP, SEQUENCE, DELETED))
        records = record_of(numbers(rows, SEQUENCE)).tolist()
        known, time_ms = None, at.before_ms
        for key, timestamp, place, deleted, record, row in zip(*hidden, records, to_dicts(rows), strict=True):
            if record != known:
                known, time_ms = record, at.before_ms
            taking: list[_Fold] = []
            for start in self._starts(timestamp):
                if self._is_closed(start, max(time_ms, timestamp)):
                    late += 1
                    continue
                taking.append(folds.setdefault((key, start), _Fold(key, start)))
            if taking:
                work.append((taking, timestamp, place, record, None if deleted else row))
            # Of several rows from one record, such as the finals of several windows, one may make the next late.
            time_ms = max(time_ms, timestamp)
        if not work:
            return Emitted(no_rows(self.node.columns), late)
        store = stores[self._store.name]
        addresses = self._addresses(list(folds.values()))
        self._read(store, addresses)
        numbers_of = itertools.count()
        for taking, timestamp, place, record, row in work:
            try:
                nexts = [self._next(fold, row) for fold in taking]
            except NOT_THE_ROWS_FAULT as error:
                error.add_note(f"{self._where}, timestamp {timestamp}")
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001
                refused.add(place, taking[0].key, row, error)
                continue
            for fold, result in zip(taking, nexts, strict=True):
                newest = timestamp if fold.row is None else max(fold.timestamp, timestamp)
                fold.take(result, newest, place, record, next(numbers_of))
        self._write(store, addresses)
        emitted = self._emitted([result for fold in folds.values() for result in fold.results])
        return Emitted(emitted, late, refused=refused.rows())

    def _starts(self, timestamp: int) -> Iterator[int | None]:
        window = self.node.window
        if window is None:
            yield None
            return
        first = max(0, timestamp - window.size_ms + window.advance_ms) // window.advance_ms * window.advance_ms
        yield from range(first, timestamp + 1, window.advance_ms)

    def _is_closed(self, start: int | None, time_ms: int) -> bool:
        window = self.node.window
        if window is None or start is None or time_ms == NO_STREAM_TIME:
            return False
        return start + window_span_ms(window) <= time_ms

    def _next(self, fold: _Fold, row: Row | None) -> Row | None:
        # Both are copies: the function may change them and then raise, and a row may be folded into several windows.
        row, old = None if row is None else dict(row), None if fold.row is None else dict(fold.row)
        if self._initializer is not None:
            result: Any = self._function(fold.key, row, self._initializer() if old is None else old)
        else:
            result = row if old is None else self._function(old, row)
        if result is not None and not isinstance(result, dict):
            raise InvalidTopology(
                f"{self._where} returned {type(result).__name__}; return a dictionary of columns, or None"
            )
        if result is None:
            return None
        # A join reads the stored row as well as the emitted one, which begins with the key.
        own = {self.node.key_name: fold.key} if self._has_key else {}
        # The function gets the row back with the same columns and values in this batch as after it.
        return self._stored.of({**self._nulls, **result, **own})

    def _addresses(self, folds: Sequence[_Fold]) -> dict[int, list[tuple[bytes, _Fold]]]:
        """Return, by segment, each fold with its key in the store."""
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
            stored = decode_rows(values, (*self._store.columns, STORED_TIME))
            times = pc.fill_null(stored.column(TIMESTAMP), UNKNOWN_MS).to_pylist()
            for (_, fold), value, row, timestamp in zip(pairs, values, to_dicts(stored), times, strict=True):
                fold.row, fold.timestamp = None if value is None else row, timestamp

    def _write(self, store: PendingStore, addresses: Mapping[int, list[tuple[bytes, _Fold]]]) -> None:
        for segment, of_segment in addresses.items():
            # All rows of a key may have been refused.
            pairs = [(key, fold) for key, fold in of_segment if fold.results]
            rows = [fold.row for _, fold in pairs]
            values = from_dicts(rows, self._store.columns, self._where)
            values = values.append_column(DELETED, pa.array([row is None for row in rows]))
            values = values.append_column(TIMESTAMP, pa.array([fold.timestamp for _, fold in pairs], pa.int64()))
            encoded = encode_rows(values, (*self._store.columns, STORED_TIME))
            store.put_many(segment, [key for key, _ in pairs], encoded)

    def _emitted(self, results: list[_Result]) -> Rows:
        results.sort(key=lambda result: (result.place, result.number))
        window: Window | None = self.node.window
        kept = from_dicts([result.row for result in results], self._store.columns, self._where)
        named: dict[str, Any] = dict(zip(kept.column_names, kept.columns, strict=True))
        keys = pa.array([result.key for result in results], pa.string())
        named[self.node.key_name] = keys
        if window is not None:
            starts = np.array([result.start for result in results], dtype=np.int64)
            named |= {WINDOW_START: pa.array(starts), WINDOW_END: pa.array(starts + window.size_ms)}
        schema = value_schema(self.node.columns)
        values = pa.table([named[n].cast(t) for n, t in zip(schema.names, schema.types, strict=True)], schema)
        return make_rows(
            self.node.columns,
            keys=keys,
            timestamps=np.array([result.timestamp for result in results], dtype=np.int64),
            sequence=np.array([result.place for result in results], dtype=np.int64),
            deleted=np.array([result.row is None for result in results]),
            values={name: values.column(name) for name in schema.names},
        )
