"""Tumbling, hopping and unwindowed aggregation: merges Spark's partial results into the store, whole columns at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import Records, ValueLayout, bytes_list, slots_of, window_keys
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.fold import fold_into
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.results import Results, result_rows
from tidemark.tasks.partials import Partial
from tidemark.tasks.rows import no_rows
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import Aggregation, StoreSpec, Window
from tidemark.topology.stores import window_span_ms


class WindowedAggregateOperator:
    """An `Operator` with one input: partial results with unique (key, window).

    Columns: those of `Partial` to `KEY`; `LAST_OFFSET`; `WINDOW`, the window's start, if there are windows; one column per slot
    of `slots_of(aggregates)`.

    Emits each changed window in the order in which its last record arrived, and the windows of one record from the earliest
    on, as Kafka Streams' `KStreamWindowAggregate` does. `__ts` is the newest timestamp that the window ever had. If `emits` is
    False, no node reads the rows, so they are not built and `Emitted.rows` is empty.
    """

    def __init__(self, aggregation: Aggregation, emits: bool = True) -> None:
        if not isinstance(aggregation.window, Window | None):
            raise TypeError(f"{aggregation.node}: {aggregation.window} is not a tumbling or hopping window")
        self.aggregation = aggregation
        self.emits = emits
        self._window = aggregation.window
        self._newest_starts: dict[int, int] = {}
        """By live segment, a time after which no window in the store starts. No window is read for it."""

    def run(self, inputs: Sequence[pa.Table], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Merge the partials that are not late, and emit the result of each changed window."""
        aggregation, window = self.aggregation, self._window
        (partials,) = inputs
        late = 0
        if window is not None:
            partials, late = in_time(partials, window, at)
            self._forget_expired(at)
        if partials.num_rows == 0:
            return Emitted(no_rows(aggregation.columns), late)
        # The store reads and writes keys in their order several times faster, and Arrow sorts columns faster than lists.
        key_order = [(name, "ascending") for name in (Partial.KEY, Partial.WINDOW) if name in partials.column_names]
        partials = partials.take(pc.sort_indices(partials, sort_keys=key_order))
        layout = ValueLayout(slots_of(aggregation.aggregates))
        starts = None if window is None else partials.column(Partial.WINDOW).to_numpy()
        records = self._merge(layout, partials, starts, stores[aggregation.store.name])
        if not self.emits:
            return Emitted(no_rows(aggregation.columns), late)
        offsets = partials.column(Partial.LAST_OFFSET).to_numpy()
        order = np.argsort(offsets, kind="stable") if starts is None else np.lexsort((starts, offsets))
        records = records[order]
        starts = None if starts is None else starts[order]
        results = Results(
            keys=_whole(partials.column(Partial.KEY)).take(pa.array(order)),
            timestamps=np.ascontiguousarray(records["ts"]),
            starts=starts,
            ends=None if window is None or starts is None else starts + window.size_ms,
            records=records,
            offsets=offsets[order],
        )
        return Emitted(result_rows(aggregation, layout, results), late)

    def _merge(
        self, layout: ValueLayout, partials: pa.Table, starts: npt.NDArray[np.int64] | None, store: PendingStore
    ) -> Records:
        records = layout.empty(partials.num_rows)
        for segment, chosen in by_segment(self.aggregation.store, starts):
            rows = partials if chosen is None else partials.take(pa.array(chosen))
            keys_column = _whole(rows.column(Partial.KEY))
            if starts is None:
                keys = bytes_list(keys_column)
                old = layout.decode(store.get_many(segment, keys))
            else:
                own_starts = rows.column(Partial.WINDOW).to_numpy()
                keys = window_keys(keys_column, own_starts)
                old = self._stored(layout, store, segment, keys, own_starts)
            new = fold_into(layout, old, rows)
            store.put_many(segment, keys, layout.encode(new))
            if chosen is None:
                return new
            records[chosen] = new
        return records

    def _forget_expired(self, at: BatchTime) -> None:
        first = first_live_segment(self.aggregation.store, at.before_ms)
        if first is not None:
            self._newest_starts = {segment: start for segment, start in self._newest_starts.items() if segment >= first}

    def _stored(
        self,
        layout: ValueLayout,
        store: PendingStore,
        segment: int,
        keys: Sequence[bytes],
        starts: npt.NDArray[np.int64],
    ) -> Records:
        """Return the stored values of windows. Those that start later than all before them are not looked up.

        If keys are many and windows short, nearly all windows of a batch are new.
        """
        newest = self._newest_starts.get(segment)
        if newest is None:
            newest = NO_STREAM_TIME if segment not in store.segments() else np.iinfo(np.int64).max
        self._newest_starts[segment] = max(newest, int(starts.max()))
        older = np.flatnonzero(starts <= newest)
        if len(older) == len(keys):
            return layout.decode(store.get_many(segment, keys))
        records = layout.empty(len(keys))
        if len(older):
            records[older] = layout.decode(store.get_many(segment, [keys[number] for number in older.tolist()]))
        return records


def by_segment(
    spec: StoreSpec, starts: npt.NDArray[np.int64] | None
) -> Iterator[tuple[int, npt.NDArray[np.intp] | None]]:
    """Yield the segments of window starts with the numbers of their rows; None means all rows."""
    if starts is None or spec.segment_ms is None:
        yield WHOLE, None
        return
    segments = starts // spec.segment_ms
    distinct = np.unique(segments)
    for segment in distinct:
        yield int(segment), None if len(distinct) == 1 else np.flatnonzero(segments == segment)


def in_time(partials: pa.Table, window: Window, at: BatchTime) -> tuple[pa.Table, int]:
    """Return the rows whose window was open at the stream time of the batch's start, and the number of late records.

    See invariant: late rows.
    """
    if at.before_ms == NO_STREAM_TIME or partials.num_rows == 0:
        return partials, 0
    is_open = partials.column(Partial.WINDOW).to_numpy() + window_span_ms(window) > at.before_ms
    if is_open.all():
        return partials, 0
    late = int(partials.column(Partial.ROWS).to_numpy()[~is_open].sum())
    return partials.filter(pa.array(is_open)), late


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
