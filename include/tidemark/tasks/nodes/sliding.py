"""Aggregation in sliding windows: partial results per timestamp are kept, windows are put together from them.

The windows are those of Kafka Streams' `KStreamSlidingWindowAggregate`: a record at t makes [t - difference, t], or
[0, difference] where that would begin before the epoch, and [t + 1, t + 1 + difference] if a record falls into it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.stores.layout import Records, ValueLayout, slots_of, split_window_key, window_keys
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.tasks.fold import fold_into
from tidemark.tasks.merge import merge_groups
from tidemark.tasks.nodes.aggregate import by_segment
from tidemark.tasks.nodes.results import Results, result_rows
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import no_rows
from tidemark.topology.plan import Aggregation, SlidingWindow

_ROWS_AT_ONCE = 1_000_000
_TIME_BYTES = 8


@dataclass
class _Windows:
    """Windows to put together: each is rows `first` to before `last` of `values`, the stored partials that were read."""

    values: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


class SlidingAggregateOperator:
    """An `Operator` over one input: partial results with unique (k, w), `w` BIGINT being the records' timestamp.

    Other columns as for `WindowedAggregateOperator`. The store (window keys of key and timestamp) holds the partials, so
    that a window is right however late a record of it comes. It must retain the difference + the grace + 1 ms.
    A record is late when t + 1 + difference <= stream time - grace; a window is left as it is when its end lies before
    stream time - grace. Emits each window that a record of the batch fell into or made, `__ts` its newest record's.
    """

    def __init__(self, aggregation: Aggregation, emits: bool = True) -> None:
        if not isinstance(aggregation.window, SlidingWindow):
            raise TypeError(f"{aggregation.node}: {aggregation.window} is not a sliding window")
        self.aggregation = aggregation
        self.emits = emits
        self._difference_ms = aggregation.window.difference_ms
        self._grace_ms = aggregation.window.grace_ms

    def run(self, inputs: Sequence[pa.Table], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Keep the partials that are in time, and emit the windows that they change."""
        aggregation = self.aggregation
        partials = inputs[0].sort_by([("k", "ascending"), ("w", "ascending")])
        open_from = 0 if at.before_ms == NO_STREAM_TIME else max(0, at.before_ms - self._grace_ms)
        is_late = partials.column("w").to_numpy() + 1 + self._difference_ms <= open_from
        late = int(partials.column("rows").to_numpy()[is_late].sum())
        partials = partials.filter(pa.array(~is_late)).combine_chunks()
        if partials.num_rows == 0:
            return Emitted(no_rows(aggregation.columns), late)
        layout = ValueLayout(slots_of(aggregation.aggregates))
        store = stores[aggregation.store.name]
        is_new = self._keep(layout, partials, store)
        if not self.emits:
            return Emitted(no_rows(aggregation.columns), late)
        windows = self._changed(partials, is_new, store, open_from)
        starts = np.array(windows.starts, dtype=np.int64)
        results = Results(
            keys=pa.array(windows.keys, pa.binary()).cast(pa.string()),
            timestamps=np.array(windows.timestamps, dtype=np.int64),
            starts=starts,
            ends=starts + self._difference_ms,
            records=_put_together(layout, windows),
        )
        return Emitted(result_rows(aggregation, layout, results), late)

    def _keep(self, layout: ValueLayout, partials: pa.Table, store: PendingStore) -> npt.NDArray[np.bool_]:
        """Merge the partials into the store; which of them have a timestamp that their key did not have before."""
        is_new = np.empty(partials.num_rows, dtype=np.bool_)
        for segment, chosen in by_segment(self.aggregation.store, partials.column("w").to_numpy()):
            rows = partials if chosen is None else partials.take(pa.array(chosen))
            keys = window_keys(rows.column("k").combine_chunks(), rows.column("w").to_numpy())
            old = store.get_many(segment, keys)
            store.put_many(segment, keys, layout.encode(fold_into(layout, layout.decode(old), rows)))
            is_new[slice(None) if chosen is None else chosen] = [value is None for value in old]
        return is_new

    def _changed(
        self, partials: pa.Table, is_new: npt.NDArray[np.bool_], store: PendingStore, open_from: int
    ) -> _Windows:
        found = _Windows()
        segments = store.segments()
        difference_ms = self._difference_ms
        keys = partials.column("k").cast(pa.binary()).to_pylist()
        listed = zip(keys, partials.column("w").to_pylist(), is_new.tolist(), strict=True)
        for key, rows in groupby(listed, key=lambda row: row[0]):
            changed = [(time, fresh) for _, time, fresh in rows]
            # What lies before concerns closed windows only, and whether it is still stored depends on its segment.
            least = max(0, changed[0][0] - difference_ms - 1, open_from - difference_ms - 1)
            times, values = self._stored(store, segments, key, least, changed[-1][0] + difference_ms + 1)
            offset = len(found.values)
            found.values += values
            for start in sorted(self._starts(times, changed)):
                if start + difference_ms < open_from:
                    continue
                first, last = bisect_left(times, start), bisect_right(times, start + difference_ms)
                found.keys.append(key)
                found.starts.append(start)
                found.timestamps.append(times[last - 1])
                found.first.append(offset + first)
                found.last.append(offset + last)
        return found

    def _starts(self, times: Sequence[int], changed: Sequence[tuple[int, bool]]) -> set[int]:
        """Windows that hold a changed timestamp, or that a new one makes."""
        difference_ms = self._difference_ms
        starts: set[int] = set()
        for time, fresh in changed:
            # Left windows of itself and of later records, and right windows of earlier ones.
            later = times[bisect_left(times, time) : bisect_right(times, time + difference_ms)]
            starts.update(max(0, other - difference_ms) for other in later)
            earlier = times[bisect_left(times, time - 1 - difference_ms) : bisect_left(times, time)]
            starts.update(other + 1 for other in earlier)
            behind = times[bisect_right(times, time) : bisect_right(times, time + 1 + difference_ms)]
            # A record at its very end has made that window before, or does so in this batch.
            if fresh and behind and behind[-1] != time + 1 + difference_ms:
                starts.add(time + 1)
        return starts

    def _stored(
        self, store: PendingStore, segments: Sequence[int], key: bytes, least: int, most: int
    ) -> tuple[list[int], list[bytes]]:
        """The key's timestamps in [least, most], ascending, and their partials."""
        segment_ms = self.aggregation.store.segment_ms
        times: list[int] = []
        values: list[bytes] = []
        start, end = (key + time.to_bytes(_TIME_BYTES, "big") for time in (least, most + 1))
        for segment in segments:
            if segment_ms is not None and not least // segment_ms <= segment <= most // segment_ms:
                continue
            for found, value in store.range(segment, start, end):
                if len(found) == len(key) + _TIME_BYTES:  # Else another key, of which this one is a prefix.
                    times.append(split_window_key(found)[1])
                    values.append(value)
        return times, values


def _put_together(layout: ValueLayout, windows: _Windows) -> Records:
    """One record per window. A stored partial is in as many as overlap there, so it is done in portions."""
    values = layout.decode(windows.values)
    first, last = np.array(windows.first, dtype=np.int64), np.array(windows.last, dtype=np.int64)
    portions = np.cumsum(last - first) // _ROWS_AT_ONCE
    merged = [layout.empty(0)]
    for portion in np.unique(portions):
        begin, sizes = first[portions == portion], (last - first)[portions == portion]
        offsets = np.cumsum(sizes) - sizes
        rows = np.arange(sizes.sum()) + np.repeat(begin - offsets, sizes)
        merged.append(merge_groups(layout, values[rows], offsets))
    return np.concatenate(merged)
