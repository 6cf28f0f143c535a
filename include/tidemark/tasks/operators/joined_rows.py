"""The rows that one side of a stream join keeps for future partners, in a window store.

A key consists of the key's bytes; the timestamp, 8 bytes; a counter that distinguishes rows of equal key and timestamp, 4
bytes; and the timestamp again, 8 bytes; all big-endian. The first timestamp orders the rows of a key by time, so that a scan
reads only nearby rows. The last one is where every window store has it, because a restore finds the segment by it. A key may
contain any bytes, so rows of another key that has this one as a prefix may lie between its rows; the total length
distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.tasks.operators.columns import TIME_BYTES, Flags, Numbers, big_endian, key_codes, make_rows, numbers
from tidemark.tasks.rows import KEY, TIMESTAMP, Rows, decode_rows, encode_rows, value_schema
from tidemark.topology.plan import Column

COUNTER_BYTES = 4
_SUFFIX_BYTES = TIME_BYTES + COUNTER_BYTES + TIME_BYTES


@dataclass(frozen=True)
class Kept:
    """Rows with the counter of each."""

    rows: Rows
    counters: Numbers


@dataclass(frozen=True)
class JoinedRows:
    """Reads and adds rows with `columns`. Rows are removed with their segment of `segment_ms`, never one by one."""

    store: PendingStore
    segment_ms: int
    columns: tuple[Column, ...]

    def near(self, rows: Rows, back_ms: int, ahead_ms: int) -> Kept:
        """Return kept rows of the keys of `rows`, from `back_ms` before a key's first timestamp to `ahead_ms` after its last.

        The rows of one key are ordered by timestamp, then counter. Raises `TaskCorrupted`.
        """
        keys: list[bytes] = []
        values: list[bytes] = []
        if rows.num_rows:
            spread = pa.table({"k": rows.column(KEY), "ts": rows.column(TIMESTAMP)}).group_by("k")
            ranges = spread.aggregate([("ts", "min"), ("ts", "max")])
            low = np.maximum(numbers(ranges, "ts_min") - back_ms, 0)
            high = numbers(ranges, "ts_max") + ahead_ms
            starts = _joined(ranges.column("k"), big_endian(low))
            ends = _joined(ranges.column("k"), big_endian(high + 1))
            for segment in self.store.segments():
                for i in np.flatnonzero((low // self.segment_ms <= segment) & (segment <= high // self.segment_ms)):
                    length = len(starts[i]) - TIME_BYTES + _SUFFIX_BYTES
                    for key, value in self.store.range(segment, starts[i], ends[i]):
                        if len(key) == length:
                            keys.append(key)
                            values.append(value)
        suffixes = np.frombuffer(
            b"".join([key[-_SUFFIX_BYTES:] for key in keys]),
            dtype=[("ts", ">i8"), ("counter", f">i{COUNTER_BYTES}"), ("again", ">i8")],
        )
        held = decode_rows(values, self.columns)
        kept = make_rows(
            self.columns,
            keys=pa.array([key[:-_SUFFIX_BYTES] for key in keys], pa.binary()),
            timestamps=suffixes["ts"].astype(np.int64),
            sequence=np.zeros(len(keys), dtype=np.int64),
            deleted=None,
            values={name: held.column(name) for name in value_schema(self.columns).names},
        )
        return Kept(kept, suffixes["counter"].astype(np.int64))

    def add(self, rows: Rows, is_kept: Flags) -> Kept:
        """Give all new rows counters, and keep those for which `is_kept` is true."""
        if not rows.num_rows:
            return Kept(rows, np.zeros(0, dtype=np.int64))
        keys, times = rows.column(KEY), numbers(rows, TIMESTAMP)
        counters = self._counters(keys, times)
        names = _joined(keys, big_endian(times), big_endian(counters, COUNTER_BYTES), big_endian(times))
        values = encode_rows(rows, self.columns)
        segments = times // self.segment_ms
        for segment in np.unique(segments).tolist():
            chosen = np.flatnonzero((segments == segment) & is_kept).tolist()
            if not chosen:
                continue
            self.store.put_many(segment, [names[i] for i in chosen], [values[i] for i in chosen])
        return Kept(rows, counters)

    def _counters(self, keys: pa.ChunkedArray, times: Numbers) -> Numbers:
        (codes,) = key_codes(keys)
        order = np.lexsort((times, codes))
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (np.diff(codes[order]) != 0) | (np.diff(times[order]) != 0)
        firsts = np.flatnonzero(is_first)
        group = np.cumsum(is_first) - 1
        taken = self._taken(keys.take(pa.array(order[firsts])), times[order[firsts]])
        counters = np.empty(len(order), dtype=np.int64)
        counters[order] = np.arange(len(order)) - firsts[group] + taken[group]
        return counters

    def _taken(self, keys: pa.ChunkedArray, times: Numbers) -> Numbers:
        """Return the number of kept rows of each distinct key and timestamp."""
        taken = np.zeros(len(times), dtype=np.int64)
        stamps = big_endian(times)
        # Rows are not deleted one by one, so without the row of counter 0 there is none. One read suffices for nearly all.
        zeros = _joined(keys, stamps, big_endian(np.zeros_like(times), COUNTER_BYTES), stamps)
        segments = times // self.segment_ms
        for segment in np.unique(segments).tolist():
            chosen = np.flatnonzero(segments == segment)
            found = self.store.get_many(segment, [zeros[i] for i in chosen])
            for i, value in zip(chosen, found, strict=True):
                if value is not None:
                    prefix = zeros[i][: -TIME_BYTES - COUNTER_BYTES]
                    rows = self.store.range(segment, zeros[i], prefix + b"\xff" * COUNTER_BYTES)
                    taken[i] = sum(len(key) == len(zeros[i]) for key, _ in rows)
        return taken


def _joined(keys: pa.ChunkedArray, *parts: pa.Array) -> list[bytes]:
    return bytes_list(pc.binary_join_element_wise(keys.combine_chunks().cast(pa.binary()), *parts, b""))
