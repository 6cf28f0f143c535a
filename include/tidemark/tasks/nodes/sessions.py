"""Aggregation in session windows: partial sessions merge with each other and with the stored ones in reach.

The rules are those of Kafka Streams' `KStreamSessionWindowAggregate`: two sessions are one when at most the gap lies
between them; a session that ends before stream time - grace - gap is closed, and what would make one is late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.stores.session_keys import session_keys, sessions_between
from tidemark.tasks.fold import fold_into
from tidemark.tasks.merge import merge_groups
from tidemark.tasks.nodes.results import Results, result_rows
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import no_rows
from tidemark.topology.plan import Aggregation, SessionWindow


@dataclass
class _Session:
    """One session being put together: `partials` are row numbers, `stored` the sessions that it takes in."""

    key: bytes
    start: int
    end: int
    partials: list[int]
    stored: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def take(self, start: int, end: int) -> None:
        self.start = min(self.start, start)
        self.end = max(self.end, end)


class SessionAggregateOperator:
    """An `Operator` over one input: partial sessions.

    Columns: `k` STRING; `w` and `e` BIGINT, the first and last record's timestamp; `rows`, `max_ts` BIGINT; one column per
    slot. Several partials of a key may overlap. Rows that it emits have `__ts` = `window_end` = the last record's
    timestamp. A session that was taken into a larger one is emitted as a deleted row which keeps its `window_start` and
    `window_end`: with the key they say which session is gone. Its aggregates are null.
    """

    def __init__(self, aggregation: Aggregation, emits: bool = True) -> None:
        if not isinstance(aggregation.window, SessionWindow):
            raise TypeError(f"{aggregation.node}: {aggregation.window} is not a session window")
        self.aggregation = aggregation
        self.emits = emits
        self._window = aggregation.window

    def run(self, inputs: Sequence[pa.Table], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Merge the partials that are in time, and emit each new or grown session and each that is gone."""
        aggregation = self.aggregation
        partials = inputs[0].sort_by([("k", "ascending"), ("w", "ascending")]).combine_chunks()
        store = stores[aggregation.store.name]
        sessions: list[_Session] = []
        late = 0
        counts = partials.column("rows").to_pylist()
        for session in self._merged(partials, store, at):
            if self._is_closed(session, at):
                late += sum(counts[row] for row in session.partials)
            else:
                sessions.append(session)
        if not sessions:
            return Emitted(no_rows(aggregation.columns), late)
        layout = ValueLayout(slots_of(aggregation.aggregates))
        results = self._results(layout, partials, sessions)
        self._write(layout, store, results)
        rows = result_rows(aggregation, layout, results) if self.emits else no_rows(aggregation.columns)
        return Emitted(rows, late)

    def _is_closed(self, session: _Session, at: BatchTime) -> bool:
        window = self._window
        return at.before_ms != NO_STREAM_TIME and session.end < at.before_ms - window.grace_ms - window.gap_ms

    def _merged(self, partials: pa.Table, store: PendingStore, at: BatchTime) -> Iterator[_Session]:
        """The sessions that the partials make with each other and with the store's, by key and start."""
        gap_ms = self._window.gap_ms
        segments = store.segments()
        current: _Session | None = None
        columns = [partials.column("k").cast(pa.binary()), partials.column("w"), partials.column("e")]
        for row, (key, start, end) in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
            # Sorted by start: what the last session does not reach, none of the earlier ones can.
            if current is not None and current.key == key and start <= current.end + gap_ms:
                current.partials.append(row)
                current.take(start, end)
            else:
                if current is not None:
                    yield current
                current = _Session(key, start, end, [row])
            for old_start, old_end, value in self._stored(store, segments, key, start, end, at):
                current.stored[old_start, old_end] = value
                current.take(old_start, old_end)
        if current is not None:
            yield current

    def _stored(
        self, store: PendingStore, segments: Sequence[int], key: bytes, start: int, end: int, at: BatchTime
    ) -> Iterator[tuple[int, int, bytes]]:
        """Stored sessions at most the gap away from [start, end]."""
        spec, gap_ms = self.aggregation.store, self._window.gap_ms
        least_end = start - gap_ms
        if spec.retention_ms is not None and at.before_ms != NO_STREAM_TIME:
            # Whether an expired session is still there depends on when its segment is dropped: it never counts.
            least_end = max(least_end, at.before_ms - spec.retention_ms)
        for segment in segments:
            if spec.segment_ms is None or segment >= least_end // spec.segment_ms:
                yield from sessions_between(store, segment, key, least_end, end + gap_ms)

    def _results(self, layout: ValueLayout, partials: pa.Table, sessions: Sequence[_Session]) -> Results:
        """The sessions' new values, and behind them those that are gone."""
        stored = [value for session in sessions for value in session.stored.values()]
        rows = [row for session in sessions for row in session.partials]
        taken = partials.take(pa.array(rows, pa.int64()))
        values = np.concatenate([layout.decode(stored), fold_into(layout, layout.empty(len(rows)), taken)])
        owners = [i for i, session in enumerate(sessions) for _ in session.stored]
        owners += [i for i, session in enumerate(sessions) for _ in session.partials]
        order = np.argsort(owners, kind="stable")
        sizes = [len(session.stored) + len(session.partials) for session in sessions]
        merged = merge_groups(layout, values[order], np.cumsum([0, *sizes[:-1]]))
        gone = [
            (session.key, start, end)
            for session in sessions
            for start, end in session.stored
            if (start, end) != (session.start, session.end)
        ]
        named = [*((session.key, session.start, session.end) for session in sessions), *gone]
        ends = np.array([end for _, _, end in named], dtype=np.int64)
        return Results(
            keys=pa.array([key for key, _, _ in named], pa.binary()).cast(pa.string()),
            timestamps=ends,
            starts=np.array([start for _, start, _ in named], dtype=np.int64),
            ends=ends,
            records=np.concatenate([merged, layout.empty(len(gone))]),
            deleted=np.arange(len(named)) >= len(sessions),
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
            store.put_many(int(segment), [keys[i] for i in chosen], [None if deleted[i] else values[i] for i in chosen])
