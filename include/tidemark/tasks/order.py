"""The order in which a task processes the records of a batch (see invariant: order in a batch).

Kafka Streams takes the oldest among the next records of all topics. A record's position is therefore determined by the newest
timestamp of its topic up to it, then by topic, then by offset: records of one topic stay in the order of their offsets. Among
topics with equal times, one that feeds the table of a join comes before one that feeds its stream, then the plan's order
decides. Records that Spark filtered out are not known here. They count only from the next result on of an aggregation of their
topic that meets other topics, by its `Partial.NEWEST`: for that result, and for all that follows of their topic in the batch.

Every row of the task loop carries the position of its record as `__seq`. Rows that one record produced on two paths carry the
same `__seq`; `topology.paths` decides which of them comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.tasks.forks import record_of
from tidemark.tasks.operators.columns import Numbers, in_sequence, numbers, with_sequence
from tidemark.tasks.partials import Partial
from tidemark.tasks.rows import SEQUENCE, TIMESTAMP, Rows
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import Pipeline


class RecordOrder:
    """The order of one sub-topology. Holds no state."""

    def __init__(self, paths: RecordPaths) -> None:
        self._ranks = paths.source_ranks()
        self._paths = paths

    def number(
        self,
        entered: Sequence[tuple[Pipeline, Rows]],
        partials: Sequence[tuple[Pipeline, pa.Table]],
        sent: Sequence[tuple[Pipeline, pa.Table]],
    ) -> tuple[list[Rows], list[pa.Table], Origins]:
        """Return each path's rows with positions as `__seq` (until now their offsets), and tables of positions.

        There is one such table for each of `partials`, which have the columns `LAST_OFFSET`, `MAX_TS` and, if they are merged
        with records of other sources, `NEWEST` of `Partial`: it maps each offset to its position, in the columns `offset` and
        `place`. The last result maps positions back to records, and the records of `sent`, which have the columns
        `RECORD_OFFSET` and `MAX_TS`, to positions.
        """
        taken = [(b.source, numbers(rows, SEQUENCE), numbers(rows, TIMESTAMP)) for b, rows in entered]
        taken += [
            (b.source, numbers(table, Partial.LAST_OFFSET), numbers(table, self._newest(b))) for b, table in partials
        ]
        taken += [
            (b.source, numbers(table, Partial.RECORD_OFFSET), numbers(table, Partial.MAX_TS)) for b, table in sent
        ]
        walked = {source: _walk([(o, t) for s, o, t in taken if s == source]) for source in {s for s, _, _ in taken}}
        places = _dense([walked[source].keys(offsets, self._ranks[source]) for source, offsets, _ in taken])
        numbered = [
            in_sequence(with_sequence(rows, own))
            for (_, rows), own in zip(entered, places[: len(entered)], strict=True)
        ]
        merged = slice(len(entered), len(entered) + len(partials))
        results = [
            pa.table({"offset": offsets, "place": own})
            for (_, offsets, _), own in zip(taken[merged], places[merged], strict=True)
        ]
        return numbered, results, Origins([(source, offsets) for source, offsets, _ in taken], places)

    def _newest(self, pipeline: Pipeline) -> str:
        # The records of one source are in the order of their offsets, whatever their times are.
        is_merged = pipeline.aggregation is not None and self._paths.are_merged(pipeline.aggregation)
        return Partial.NEWEST if is_merged else Partial.MAX_TS


class Origins:
    """Finds the record from which a row of the batch comes, and the position of a record.

    Used for rows that cannot be processed, for topics that several paths write, and to place the rows of callbacks.
    """

    def __init__(self, taken: Sequence[tuple[int, Numbers]], places: Sequence[Numbers]) -> None:
        """`taken` are sources by number, with offsets; `places` are the positions of these offsets."""
        self._taken = taken
        self._places = places
        self._found: dict[int, tuple[int, int]] | None = None

    def last(self) -> int:
        """Return the position of the batch's last record; 0 if it has none."""
        return max((int(places.max()) for places in self._places if len(places)), default=0)

    def of(self, sequence: int) -> tuple[int, int] | None:
        """Return the number of the row's source and the offset; None for a row that comes from no record of the batch."""
        if self._found is None:
            self._found = {
                place: (source, offset)
                for (source, offsets), places in zip(self._taken, self._places, strict=True)
                for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)
            }
        return self._found.get(int(record_of(np.array(sequence))))

    def sources(self, positions: Numbers) -> Numbers:
        """Return the numbers of the sources of these positions; any number for a position that comes from no record."""
        known = self.last()
        found = np.zeros(known + 1, dtype=np.int64)
        for (source, _), places in zip(self._taken, self._places, strict=True):
            found[places] = source
        return found[np.minimum(positions, known)]

    def positions(self, source: int, offsets: Numbers) -> Numbers:
        """Return the positions of records of one source, all of which must be known."""
        own = [
            (known, places)
            for (number, known), places in zip(self._taken, self._places, strict=True)
            if number == source
        ]
        known, places = (np.concatenate(arrays) for arrays in zip(*own, strict=True))
        order = np.argsort(known, kind="stable")
        return places[order[np.searchsorted(known, offsets, sorter=order)]]


def placed(rows: Rows, places: pa.Table) -> Rows:
    """Order the results of an aggregation by the positions of their last records, whose offsets are now their `__seq`."""
    if not rows.num_rows:
        return rows
    offsets, own = numbers(places, "offset"), numbers(places, "place")
    order = np.argsort(offsets, kind="stable")
    return in_sequence(with_sequence(rows, own[order[np.searchsorted(offsets, numbers(rows, SEQUENCE), sorter=order)]]))


@dataclass(frozen=True)
class _Walked:
    """The records of one source in the order of their offsets, with the newest timestamp up to each."""

    offsets: Numbers
    newest_ms: Numbers

    def keys(self, offsets: Numbers, rank: int) -> Numbers:
        """Return the sort keys of these offsets, least significant first: rows of offset, rank and newest timestamp."""
        newest_ms = self.newest_ms[np.searchsorted(self.offsets, offsets)]
        return np.stack([offsets, np.full(len(offsets), rank), newest_ms])


def _walk(taken: Sequence[tuple[Numbers, Numbers]]) -> _Walked:
    offsets = np.concatenate([offsets for offsets, _ in taken])
    times = np.concatenate([times for _, times in taken])
    order = np.argsort(offsets, kind="stable")
    newest_ms = np.maximum.accumulate(times[order])
    distinct, first = np.unique(offsets[order], return_index=True)
    # Among equal offsets, the last one has the newest time of all.
    last = np.append(first[1:], len(order)) - 1
    return _Walked(distinct, newest_ms[last])


def _dense(keys: Sequence[Numbers]) -> list[Numbers]:
    """Convert sort keys to the numbers 1, 3, 5 and so on; equal keys have equal numbers. Callbacks have even ones."""
    if not keys:
        return []
    joined = np.concatenate(keys, axis=1)
    order = np.lexsort(joined)
    changes = (np.diff(joined[:, order], axis=1) != 0).any(axis=0)
    places = np.zeros(joined.shape[1], dtype=np.int64)
    places[order[1:]] = np.cumsum(changes)
    places = 2 * places + 1
    return np.split(places, np.cumsum([key.shape[1] for key in keys])[:-1])
