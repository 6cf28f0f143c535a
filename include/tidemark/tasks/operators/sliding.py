"""Aggregation in sliding windows, kept and updated as in Kafka Streams' `KStreamSlidingWindowAggregate`.

A record at t creates the window [t - difference, t], or [0, difference] if that would begin before the epoch, and
[t + 1, t + 1 + difference] once a record falls into it. The store holds windows, not records: if a window was already closed
when a record arrived, windows created later do not know what the record contributed to it.

The windows that a record changes are determined one record after the other, with numbers only. Their values are merged at the
end, whole columns at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from tidemark.stores.layout import Records, ValueLayout, slots_of, split_window_key, window_keys
from tidemark.stores.pending import PendingStore
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.fold import fold_into
from tidemark.tasks.merge import merge_groups
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.aggregate import by_segment
from tidemark.tasks.operators.results import Results, result_rows
from tidemark.tasks.partials import Partial
from tidemark.tasks.rows import no_rows
from tidemark.topology.plan import Aggregation, SlidingWindow

_ROWS_AT_ONCE = 1_000_000
_TIME_BYTES = 8


@dataclass
class _Window:
    """One window of a key. `members` are what its value is merged from: numbers of stored values, or -1 - i for partial i."""

    start: int
    newest_ms: int
    members: list[int]


@dataclass(frozen=True)
class _Snapshot:
    """A window before the record arrived: its first `size` members."""

    window: _Window
    size: int
    newest_ms: int


@dataclass
class _KeyWindows:
    """The windows of one key within reach of a batch's records."""

    difference_ms: int
    first_open_end: int
    starts: list[int]
    windows: dict[int, _Window]
    changed: dict[int, int] = field(default_factory=dict)
    """By start, in the order of the last change: the offset of the record that made it."""
    made_twice: dict[int, int] = field(default_factory=dict)
    """By start: the offset of the record that created a window twice."""
    _row: int = -1
    _time: int = -1
    _offset: int = -1

    def take(self, row: int, time: int, offset: int) -> bool:
        """Add a record to its windows. Returns False if none of them is open."""
        self._row, self._time, self._offset = row, time, offset
        if time < self.difference_ms:
            self._take_early()
        else:
            self._take()
        return bool(self.changed) and self.changed[next(reversed(self.changed))] == offset

    def _take(self) -> None:
        """Update the windows that contain the time, from the latest on, then create the new ones (`processReverse`)."""
        time, difference_ms = self._time, self.difference_ms
        behind: _Snapshot | None = None
        left: _Window | None = None
        previous_ms: int | None = None
        has_left = False
        first = bisect_left(self.starts, max(0, time - 2 * difference_ms))
        for start in reversed(self.starts[first : bisect_right(self.starts, time)]):
            window = self.windows[start]
            end = start + difference_ms
            if end > time:
                behind = behind or _Snapshot(window, len(window.members), window.newest_ms)
                self._update(window)
            elif end == time:
                has_left = True
                newest_ms = window.newest_ms
                self._update(window)
                if newest_ms >= time:
                    return  # Another record of this time has already created its windows.
                previous_ms = newest_ms
            else:
                left, previous_ms = window, window.newest_ms
                break
        if previous_ms is not None and previous_ms + 1 + difference_ms >= time and previous_ms + 1 not in self.windows:
            self._make(previous_ms + 1, [])
        if not has_left:
            # If the two are the same window, Kafka Streams creates and emits it twice.
            is_joined = left is not None and left.newest_ms >= time - difference_ms
            self._make(time - difference_ms, left.members if left is not None and is_joined else [])
        if behind is not None:
            self._make_behind(behind)

    def _take_early(self) -> None:
        """Handle records before the first difference, which share the window that begins at 0 (`processEarly`)."""
        time = self._time
        behind: _Snapshot | None = None
        combined = self.windows.get(0)
        for start in self.starts[bisect_left(self.starts, 1) : bisect_right(self.starts, time)]:
            window = self.windows[start]
            behind = _Snapshot(window, len(window.members), window.newest_ms)
            self._update(window)
        if behind is None and combined is not None:
            behind = _Snapshot(combined, len(combined.members), combined.newest_ms)
        if behind is not None:
            self._make_behind(behind)
        if combined is None:
            self._make(0, [])
            return
        if combined.newest_ms < time and combined.newest_ms + 1 not in self.windows:
            self._make(combined.newest_ms + 1, [])
        self._update(combined)

    def _make(self, start: int, members: list[int]) -> None:
        """Create a window that contains the record, unless it is closed."""
        if start + self.difference_ms >= self.first_open_end:
            self._put(_Window(start, self._time, [*members, -1 - self._row]))

    def _make_behind(self, behind: _Snapshot) -> None:
        """Create the window that begins after the record. It is open, because otherwise the record would be late."""
        if behind.newest_ms > self._time and self._time + 1 not in self.windows:
            self._put(_Window(self._time + 1, behind.newest_ms, behind.window.members[: behind.size]))

    def _put(self, window: _Window) -> None:
        if window.start not in self.windows:
            insort(self.starts, window.start)
        else:
            self.made_twice[window.start] = self._offset
        self.windows[window.start] = window
        self._note(window)

    def _update(self, window: _Window) -> None:
        if window.start + self.difference_ms >= self.first_open_end:
            window.members.append(-1 - self._row)
            if window.newest_ms < self._time:
                window.newest_ms = self._time
            self._note(window)

    def _note(self, window: _Window) -> None:
        # Setting the entry again moves it to the end.
        self.changed.pop(window.start, None)
        self.changed[window.start] = self._offset


@dataclass
class _Changed:
    """Changed windows, one entry for each time that they are emitted, and the stored records from which they are merged."""

    stored: Records
    keys: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    late_rows: int = 0


class SlidingAggregateOperator:
    """An `Operator` with one input: partial results of one record each.

    Columns: those of `Partial` to `KEY`, `LAST_OFFSET`, and `WINDOW`, which is the record's timestamp; one column per slot.

    A record is late if t + difference < stream time at the batch's start - grace, or if all of its windows end before that; a
    window that ends before that is not changed. Emits each window that a record of the batch changed or created, in the order
    of the last change; `__ts` is the newest timestamp in it. The store (window keys) must retain twice the difference, the
    grace and 1 ms.
    """

    def __init__(self, aggregation: Aggregation, emits: bool = True) -> None:
        if not isinstance(aggregation.window, SlidingWindow):
            raise TypeError(f"{aggregation.node}: {aggregation.window} is not a sliding window")
        self.aggregation = aggregation
        self.emits = emits
        self._difference_ms = aggregation.window.difference_ms
        self._grace_ms = aggregation.window.grace_ms

    def run(self, inputs: Sequence[pa.Table], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Update and create the windows of the records that are not late, and emit them."""
        aggregation = self.aggregation
        first_open_end = 0 if at.before_ms == NO_STREAM_TIME else max(0, at.before_ms - self._grace_ms)
        is_late = inputs[0].column(Partial.WINDOW).to_numpy() + self._difference_ms < first_open_end
        late = int(inputs[0].column(Partial.ROWS).to_numpy()[is_late].sum())
        partials = inputs[0].filter(pa.array(~is_late))
        partials = partials.sort_by([(Partial.KEY, "ascending"), (Partial.LAST_OFFSET, "ascending")]).combine_chunks()
        layout = ValueLayout(slots_of(aggregation.aggregates))
        store = stores[aggregation.store.name]
        changed = self._changed(layout, partials, store, first_open_end)
        late += changed.late_rows
        if not changed.keys:
            return Emitted(no_rows(aggregation.columns), late)
        # The changes of one record stay in their order, which is the order in which Kafka Streams makes them.
        offsets = np.array(changed.offsets, dtype=np.int64)
        order = np.argsort(offsets, kind="stable")
        starts = np.array(changed.starts, dtype=np.int64)[order]
        keys = pa.array(changed.keys, pa.binary()).take(pa.array(order))
        records = _put_together(layout, partials, changed.stored, [changed.members[i] for i in order])
        for segment, chosen in by_segment(aggregation.store, starts):
            rows = slice(None) if chosen is None else chosen
            some = keys if chosen is None else keys.take(pa.array(chosen))
            store.put_many(segment, window_keys(some, starts[rows]), layout.encode(records[rows]))
        if not self.emits:
            return Emitted(no_rows(aggregation.columns), late)
        results = Results(
            keys=keys.cast(pa.string()),
            timestamps=np.ascontiguousarray(records["ts"]),
            starts=starts,
            ends=starts + self._difference_ms,
            records=records,
            offsets=offsets[order],
        )
        return Emitted(result_rows(aggregation, layout, results), late)

    def _changed(self, layout: ValueLayout, partials: pa.Table, store: PendingStore, first_open_end: int) -> _Changed:
        segments = store.segments()
        keys = partials.column(Partial.KEY).cast(pa.binary()).to_pylist()
        times, offsets, counts = (
            partials.column(name).to_pylist() for name in (Partial.WINDOW, Partial.LAST_OFFSET, Partial.ROWS)
        )
        groups: list[tuple[list[int], list[int]]] = []
        values: list[bytes] = []
        for key, numbers in groupby(range(len(keys)), key=keys.__getitem__):
            rows = list(numbers)
            least, most = min(times[row] for row in rows), max(times[row] for row in rows)
            stored = list(self._stored(store, segments, key, max(0, least - 2 * self._difference_ms), most))
            values += [value for _, value in stored]
            groups.append((rows, [start for start, _ in stored]))
        found = _Changed(layout.decode(values))
        newest = found.stored["ts"].tolist()
        at = 0
        for rows, starts in groups:
            windows = {
                start: _Window(start, newest[i], [i])
                for i, start in zip(range(at, at + len(starts)), starts, strict=True)
            }
            at += len(starts)
            of_key = _KeyWindows(self._difference_ms, first_open_end, starts, windows)
            for row in rows:
                if not of_key.take(row, times[row], offsets[row]):
                    found.late_rows += counts[row]
            for start, offset in of_key.changed.items():
                for _ in range(2 if of_key.made_twice.get(start) == offset else 1):
                    found.keys.append(keys[rows[0]])
                    found.starts.append(start)
                    found.offsets.append(offset)
                    found.members.append(windows[start].members)
        return found

    def _stored(
        self, store: PendingStore, segments: Sequence[int], key: bytes, least: int, most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield start and value of the key's windows that start between `least` and `most` + 1, ascending."""
        segment_ms = self.aggregation.store.segment_ms
        most += 1
        start, end = (key + time.to_bytes(_TIME_BYTES, "big") for time in (least, most + 1))
        for segment in segments:
            if segment_ms is not None and not least // segment_ms <= segment <= most // segment_ms:
                continue
            for found, value in store.range(segment, start, end):
                if len(found) == len(key) + _TIME_BYTES:  # Otherwise it is another key, of which this one is a prefix.
                    yield split_window_key(found)[1], value


def _put_together(layout: ValueLayout, partials: pa.Table, stored: Records, members: list[list[int]]) -> Records:
    """Merge one record per window. A partial is in every window that overlaps there, so this is done in portions."""
    folded = fold_into(layout, layout.empty(partials.num_rows), partials)
    # Partial i is member -1 - i, so the partials come last, in reverse.
    values = np.concatenate([stored, folded[::-1]])
    sizes = np.array([len(each) for each in members], dtype=np.int64)
    portions = np.cumsum(sizes) // _ROWS_AT_ONCE
    merged = [layout.empty(0)]
    for portion in np.unique(portions):
        first, last = np.searchsorted(portions, portion), np.searchsorted(portions, portion, "right")
        rows = np.array([member for each in members[first:last] for member in each], dtype=np.int64)
        within = sizes[first:last]
        merged.append(merge_groups(layout, values[rows], np.cumsum(within) - within))
    return np.concatenate(merged)
