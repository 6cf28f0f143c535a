"""Aggregation in session windows: records are merged with each other and with the stored sessions in reach.

The rules are those of Kafka Streams' `KStreamSessionWindowAggregate`: two sessions become one if at most the gap is between
them; a record is late if the session that it would create or extend ends before stream time - grace - gap. Stream time is that
at the start of the batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.stores.pending import PendingStore
from tidemark.stores.session_keys import session_keys, sessions_between
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.fold import fold_into
from tidemark.tasks.merge import merge_groups
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.results import Results, result_rows
from tidemark.tasks.partials import Partial
from tidemark.tasks.rows import no_rows
from tidemark.topology.plan import Aggregation, Fold, SessionWindow

_BEGINNING = -1
"""Earlier than every time: nothing is late, nothing has expired."""

Times = npt.NDArray[np.int64]


@dataclass
class _Session:
    """One session while it is assembled.

    `members` are what its value is merged from, in order: numbers of partials, or -1 - i for `_Sessions.values[i]`.
    `replaced` are the stored sessions that it absorbs. `last_offset` is the offset of its last record.
    """

    key: bytes
    start: int
    end: int
    last_offset: int = -1
    members: list[int] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)

    def take(self, other: _Session) -> None:
        self.start = min(self.start, other.start)
        self.end = max(self.end, other.end)
        self.last_offset = max(self.last_offset, other.last_offset)
        self.members += other.members
        self.replaced += other.replaced

    def add(self, row: int, offset: int) -> None:
        self.members.append(row)
        self.last_offset = max(self.last_offset, offset)


@dataclass(frozen=True)
class _Partials:
    """The columns of the partials, sorted by key, time and offset."""

    table: pa.Table
    keys: pa.Array
    first_rows: npt.NDArray[np.intp]
    times: Times
    offsets: Times
    rows: Times

    @classmethod
    def of(cls, given: pa.Table) -> _Partials:
        order = [(name, "ascending") for name in (Partial.KEY, Partial.WINDOW, Partial.LAST_OFFSET)]
        table = given.sort_by(order).combine_chunks()
        codes = table.column(Partial.KEY).combine_chunks().dictionary_encode()
        numbers = codes.indices.to_numpy(zero_copy_only=False)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        times, offsets, rows = (
            table.column(name).to_numpy() for name in (Partial.WINDOW, Partial.LAST_OFFSET, Partial.ROWS)
        )
        return cls(table, codes.dictionary.cast(pa.binary()), firsts, times, offsets, rows)


class SessionAggregateOperator:
    """An `Operator` with one input: partial results per key and timestamp.

    Columns: those of `Partial` to `KEY`, `LAST_OFFSET`, and `WINDOW`, which is the records' timestamp; one column per slot.
    Several partials of a key and timestamp are processed in the order of their offsets; all records of a partial count at its
    last offset.

    Emitted rows have `__ts` = `window_end` = the last record's timestamp. Before a session, the stored sessions that it absorbs
    are emitted as deleted rows, including itself if it keeps its window. These keep their `window_start` and `window_end`,
    which identify the deleted session together with the key; their aggregates are null. Sessions are emitted in the order of
    their last records.
    """

    def __init__(self, aggregation: Aggregation, emits: bool = True) -> None:
        if not isinstance(aggregation.window, SessionWindow):
            raise TypeError(f"{aggregation.node}: {aggregation.window} is not a session window")
        self.aggregation = aggregation
        self.emits = emits
        self._window = aggregation.window
        self._depends_on_order = any(aggregate.fold is Fold.COLLECT for aggregate in aggregation.aggregates)

    def run(self, inputs: Sequence[pa.Table], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Merge the partials that are not late, and emit each new or extended session and each deleted one."""
        aggregation = self.aggregation
        if not inputs[0].num_rows:
            return Emitted(no_rows(aggregation.columns))
        partials = _Partials.of(inputs[0])
        merging = _Merging(aggregation, self._window, stores[aggregation.store.name], partials, at)
        sessions, late = merging.sessions(self._depends_on_order)
        if not sessions:
            return Emitted(no_rows(aggregation.columns), late)
        sessions.sort(key=lambda session: (session.last_offset, session.start))
        layout = ValueLayout(slots_of(aggregation.aggregates))
        results = self._results(layout, partials, merging.values, sessions)
        self._write(layout, stores[aggregation.store.name], results)
        rows = result_rows(aggregation, layout, results) if self.emits else no_rows(aggregation.columns)
        return Emitted(rows, late)

    def _results(
        self, layout: ValueLayout, partials: _Partials, stored: list[bytes], sessions: Sequence[_Session]
    ) -> Results:
        """Return the sessions' new values, and before each the sessions that it replaces."""
        folded = fold_into(layout, layout.empty(partials.table.num_rows), partials.table)
        values = np.concatenate([folded, layout.decode(stored[::-1])])
        # Stored value i is member -1 - i, so the stored values come last, in reverse.
        members = np.array([member for session in sessions for member in session.members], dtype=np.int64)
        sizes = np.array([len(session.members) for session in sessions], dtype=np.int64)
        merged = merge_groups(layout, values[members], np.cumsum(sizes) - sizes)
        named: list[tuple[bytes, int, int]] = []
        places: list[int] = []
        offsets: list[int] = []
        for session in sessions:
            # Kafka Streams deletes nothing if the merged session is just the record's own.
            if session.start != session.end:
                named += [(session.key, start, end) for end, start in sorted((e, s) for s, e in session.replaced)]
            places.append(len(named))
            named.append((session.key, session.start, session.end))
            offsets += [session.last_offset] * (len(named) - len(offsets))
        records = layout.empty(len(named))
        records[places] = merged
        deleted = np.ones(len(named), dtype=np.bool_)
        deleted[places] = False
        ends = np.array([end for _, _, end in named], dtype=np.int64)
        return Results(
            keys=pa.array([key for key, _, _ in named], pa.binary()).cast(pa.string()),
            timestamps=ends,
            starts=np.array([start for _, start, _ in named], dtype=np.int64),
            ends=ends,
            records=records,
            offsets=np.array(offsets, dtype=np.int64),
            deleted=deleted,
        )

    def _write(self, layout: ValueLayout, store: PendingStore, results: Results) -> None:
        starts, ends, deleted = results.starts, results.ends, results.deleted
        if starts is None or ends is None or deleted is None:
            raise TypeError("sessions have starts and ends")
        keys = session_keys(results.keys, ends, starts)
        values = layout.encode(results.records)
        segments = ends // (self.aggregation.store.segment_ms or np.iinfo(np.int64).max)
        for segment in np.unique(segments):
            chosen = np.flatnonzero(segments == segment)
            # A session that keeps its window is deleted first: the last of two puts counts.
            store.put_many(int(segment), [keys[i] for i in chosen], [None if deleted[i] else values[i] for i in chosen])


class _Merging:
    """Assembles the sessions of one batch. `values` are the stored values that they absorb."""

    def __init__(
        self, aggregation: Aggregation, window: SessionWindow, store: PendingStore, partials: _Partials, at: BatchTime
    ) -> None:
        self.values: list[bytes] = []
        self._store = store
        self._segments = store.segments()
        self._segment_ms = aggregation.store.segment_ms
        self._partials = partials
        self._gap_ms = window.gap_ms
        self._first_open_end = self._first_live_end = _BEGINNING
        if at.before_ms != NO_STREAM_TIME:
            self._first_open_end = at.before_ms - window.grace_ms - window.gap_ms
            # Whether an expired session still exists depends on when its segment is dropped, so it never counts.
            if aggregation.store.retention_ms is not None:
                self._first_live_end = at.before_ms - aggregation.store.retention_ms + 1

    def sessions(self, depends_on_order: bool) -> tuple[list[_Session], int]:
        """Return the new and extended sessions, and the number of late records."""
        found: list[_Session] = []
        late = 0
        bounds = [*self._partials.first_rows.tolist(), len(self._partials.times)]
        keys = self._partials.keys.to_pylist()
        # Times are sorted within a key: if a key's first record alone is not late, none of its records is.
        firsts = self._partials.times[self._partials.first_rows]
        one_by_one = np.ones(len(firsts), dtype=np.bool_) if depends_on_order else firsts < self._first_open_end
        chain_rows = np.flatnonzero(np.diff(self._partials.times, prepend=0) > self._gap_ms)
        for key, first, last, is_one_by_one in zip(keys, bounds[:-1], bounds[1:], one_by_one.tolist(), strict=True):
            if is_one_by_one:
                sessions, late_here = self._one_by_one(key, first, last)
                found += sessions
                late += late_here
            else:
                begin, end = np.searchsorted(chain_rows, (first + 1, last))
                found += self._in_chains(key, [first, *chain_rows[begin:end].tolist(), last])
        return found, late

    def _in_chains(self, key: bytes, bounds: Sequence[int]) -> Iterator[_Session]:
        """Yield sessions of records none of which is late; between two bounds, gaps are at most the session gap."""
        times, offsets = self._partials.times, self._partials.offsets
        current: _Session | None = None
        for first, last in pairwise(bounds):
            order = first + np.argsort(offsets[first:last], kind="stable")
            chain = _Session(key, int(times[first]), int(times[last - 1]), int(offsets[order[-1]]), order.tolist())
            stored = list(self._stored(key, chain.start - self._gap_ms, chain.end + self._gap_ms))
            # Sorted by time: what the last session does not reach, none of the earlier ones can reach.
            if current is not None and chain.start > current.end + self._gap_ms:
                yield current
                current = None
            if current is None:
                current = _Session(key, chain.start, chain.end)
            for session in stored:
                if session.replaced[0] not in current.replaced:
                    current.take(session)
            current.take(chain)
        if current is not None:
            yield current

    def _one_by_one(self, key: bytes, first: int, last: int) -> tuple[list[_Session], int]:
        """Return the sessions of records of which some may be late, processed in the order of their offsets."""
        times, offsets = self._partials.times[first:last], self._partials.offsets[first:last]
        gap_ms = self._gap_ms
        # No two of them overlap, so they are in the order of both their starts and their ends.
        sessions = list(self._stored(key, int(times[0]) - gap_ms, int(times[-1]) + gap_ms))
        starts, ends = [s.start for s in sessions], [s.end for s in sessions]
        late = 0
        for i in np.argsort(offsets, kind="stable").tolist():
            time = int(times[i])
            low, high = bisect_left(ends, time - gap_ms), bisect_right(starts, time + gap_ms)
            merged = _Session(key, time, time)
            for session in sessions[low:high]:
                merged.take(session)
            if merged.end < self._first_open_end:
                late += int(self._partials.rows[first + i])
                continue
            merged.add(first + i, int(offsets[i]))
            sessions[low:high], starts[low:high], ends[low:high] = [merged], [merged.start], [merged.end]
        return [session for session in sessions if session.last_offset >= 0], late

    def _stored(self, key: bytes, least_end: int, most_start: int) -> Iterator[_Session]:
        """Yield stored sessions that reach into [least_end, most_start] and have not expired, by their ends."""
        least_end = max(least_end, self._first_live_end)
        for segment in self._segments:
            if self._segment_ms is not None and segment < least_end // self._segment_ms:
                continue
            for start, end, value in sessions_between(self._store, segment, key, least_end, most_start):
                self.values.append(value)
                yield _Session(key, start, end, members=[-len(self.values)], replaced=[(start, end)])
