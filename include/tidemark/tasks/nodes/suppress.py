"""Suppress: windows wait in a buffer until they have closed, so that each gives one final result.

The buffer is a logged store (rule 2). Key: window end, eight bytes big-endian, the key's bytes, window start, eight bytes
big-endian: its order is that in which windows close. Value: the row as JSON, its timestamp `__ts`, and last its `__state`:

- `open`: the row waits, nothing of its window has been emitted
- `early`: the row was emitted because the buffer was full; only this mark is left, without values
- `changed`: emitted early, and the row that waits is newer
- `gone`: emitted early, and deleted since
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import BufferFull
from tidemark.stores.layout import bytes_list
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.nodes.columns import TIME_BYTES, big_endian, flags, in_sequence, make_rows, next_sequence, numbers
from tidemark.tasks.nodes.results import WINDOW_END, WINDOW_START
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import DELETED, KEY, TIMESTAMP, Rows, decode_rows, encode_rows, value_schema
from tidemark.topology.plan import Column, Suppress, WhenFull

_STATE = "__state"
_MARK = (Column(TIMESTAMP, "BIGINT"), Column(_STATE, "STRING"))
_MARK_END = b'"__state":"early"}'

Entries = list[tuple[bytes, bytes]]
"""Keys and values of the buffer."""


@dataclass(frozen=True)
class SuppressOperator:
    """An `Operator` over one input: results of windows, each update replacing the one before.

    Emits the finals in the order in which their windows close, and behind them what a full buffer pushes out. A window
    that was emitted early is emitted again when it closes only if an update came in between. Raises `BufferFull`.
    """

    node: Suppress

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Take the updates, emit the windows closed by `at.after_ms`, then see to the bounds."""
        store = stores[self.node.stores[0].name]
        (rows,) = inputs
        rows, late_rows = self._in_time(in_sequence(rows), at)
        limit = self._closed_before(at)
        unstored = self._take(rows, store, limit)
        closed = self._close(unstored, store, limit)
        return Emitted(self._rows(closed + self._relieve(store), next_sequence(inputs)), late_rows)

    def _in_time(self, rows: Rows, at: BatchTime) -> tuple[Rows, int]:
        # The aggregation drops late records itself; a second final must not depend on that.
        if not rows.num_rows:
            return rows, 0
        if rows.column(WINDOW_END).null_count or rows.column(WINDOW_START).null_count:
            raise ValueError(f"{self.node.node}: a row, deleted or not, must say its {WINDOW_START} and {WINDOW_END}")
        is_late = numbers(rows, WINDOW_END) + self.node.grace_ms <= at.before_ms
        if at.before_ms == NO_STREAM_TIME or not is_late.any():
            return rows, 0
        return rows.filter(pa.array(~is_late)), int((is_late & ~flags(rows, DELETED)).sum())

    def _closed_before(self, at: BatchTime) -> bytes:
        """Every key of a closed window is below this."""
        first_open_end = at.after_ms - self.node.grace_ms + 1
        if at.after_ms == NO_STREAM_TIME or first_open_end <= 0:
            return b""
        return first_open_end.to_bytes(TIME_BYTES, "big")

    def _take(self, rows: Rows, store: PendingStore, limit: bytes) -> dict[bytes, bytes | None]:
        """Put the updates of open windows; give back those of windows that close now, which need not be stored."""
        if not rows.num_rows:
            return {}
        keys = pc.binary_join_element_wise(
            big_endian(numbers(rows, WINDOW_END)),
            rows.column(KEY).combine_chunks().cast(pa.binary()),
            big_endian(numbers(rows, WINDOW_START)),
            b"",
        )
        updates = _last_of_each(bytes_list(keys), numbers(rows, TIMESTAMP), flags(rows, DELETED))
        names = updates.index.to_list()
        held = store.get_many(WHOLE, names)
        before = decode_rows(held, _MARK)
        states = before.column(_STATE).to_numpy()
        deleted = flags(rows, DELETED)[updates["row"]]
        was_early = np.isin(states.astype(str), ["early", "changed", "gone"])
        # What was deleted counts no more, its timestamp included.
        forgotten = updates["anew"].to_numpy() | (states == "gone")
        known_ms = np.where(forgotten, -1, pc.fill_null(before.column(TIMESTAMP), -1).to_numpy())
        state = np.where(was_early, np.where(deleted, "gone", "changed"), "open")
        latest = rows.take(pa.array(updates["row"].to_numpy())).drop_columns([TIMESTAMP, DELETED])
        latest = latest.append_column(TIMESTAMP, pa.array(np.maximum(updates["ts"].to_numpy(), known_ms)))
        latest = latest.append_column(_STATE, pa.array(state.tolist(), pa.string()))
        latest = latest.append_column(DELETED, pa.array(deleted & ~was_early))
        values = encode_rows(latest, (*self.node.columns, *_MARK))
        # A key that is not in the store is not deleted either: each deletion is a record in the changelog.
        puts = [
            (key, value)
            for key, value, old in zip(names, values, held, strict=True)
            if key >= limit and (value is not None or old is not None)
        ]
        store.put_many(WHOLE, [key for key, _ in puts], [value for _, value in puts])
        return {key: value for key, value in zip(names, values, strict=True) if key < limit}

    def _close(self, unstored: Mapping[bytes, bytes | None], store: PendingStore, limit: bytes) -> Entries:
        stored = dict(store.range(WHOLE, b"", limit))
        store.put_many(WHOLE, list(stored), [None] * len(stored))
        closing = {**stored, **unstored}
        return sorted((key, value) for key, value in closing.items() if value is not None and not _is_mark(value))

    def _relieve(self, store: PendingStore) -> Entries:
        """Windows to emit early. Raises `BufferFull` where the node says so."""
        node = self.node
        if node.max_records is None and node.max_bytes is None:
            return []
        held = [(key, value) for key, value in store.range(WHOLE, b"", None) if not _is_mark(value)]
        sizes = np.array([len(key) + len(value) for key, value in held], dtype=np.int64)
        records, size_bytes = len(held), int(sizes.sum())
        too_many = 0 if node.max_records is None else max(0, records - node.max_records)
        if node.max_bytes is not None and size_bytes > node.max_bytes:
            freed = np.cumsum(sizes)
            too_many = max(too_many, int(np.searchsorted(freed, size_bytes - node.max_bytes)) + 1)
        if not too_many:
            return []
        if node.when_full is WhenFull.SHUT_DOWN:
            bounds = ((node.max_records, "records"), (node.max_bytes, "bytes"))
            allowed = " and ".join(f"{bound} {unit}" for bound, unit in bounds if bound is not None)
            raise BufferFull(
                f"{node.node}: {records} open windows of {size_bytes} bytes wait in '{node.stores[0].name}', which may "
                f"hold {allowed}; raise the bound, shorten the grace, or let it emit early when full"
            )
        early = held[:too_many]
        marks = decode_rows([value for _, value in early], _MARK)
        is_gone = pc.equal(marks.column(_STATE), "gone")
        marks = marks.set_column(1, _STATE, pa.array(["early"] * len(early), pa.string()))
        # The row behind a deletion that goes out now is done with: what comes next for its window starts afresh.
        store.put_many(WHOLE, [key for key, _ in early], encode_rows(marks.append_column(DELETED, is_gone), _MARK))
        return early

    def _rows(self, entries: Entries, first_sequence: int) -> Rows:
        held = decode_rows([value for _, value in entries], (*self.node.columns, *_MARK))
        return make_rows(
            self.node.columns,
            keys=pa.array([key[TIME_BYTES:-TIME_BYTES] for key, _ in entries], pa.binary()),
            timestamps=numbers(held, TIMESTAMP),
            sequence=np.arange(first_sequence, first_sequence + len(entries), dtype=np.int64),
            deleted=np.asarray(held.column(_STATE).to_numpy() == "gone", dtype=np.bool_),
            values={name: held.column(name) for name in value_schema(self.node.columns).names},
        )


def _is_mark(value: bytes) -> bool:
    return value.endswith(_MARK_END)


def _last_of_each(keys: list[bytes], timestamps: object, deleted: object) -> pd.DataFrame:
    """By key, in order of appearance: `row`, the number of its last update; `ts`, the newest since it was last deleted,
    that deletion included only where it is the last; `anew`: whether it was deleted on the way."""
    frame = pd.DataFrame({"key": keys, "row": np.arange(len(keys)), "ts": timestamps, "deleted": deleted})
    frame["cut"] = frame["row"].where(frame["deleted"], -1)
    frame["cut"] = frame.groupby("key", sort=False)["cut"].transform("max")
    frame["last"] = frame.groupby("key", sort=False)["row"].transform("max")
    counted = frame[(frame["row"] > frame["cut"]) | (frame["row"] == frame["last"])]
    updates = counted.groupby("key", sort=False).agg(row=("row", "max"), ts=("ts", "max"), cut=("cut", "max"))
    updates["anew"] = updates["cut"] >= 0
    return updates
