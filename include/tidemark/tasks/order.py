"""The order in which a task takes the records of a batch (rule 20).

Kafka Streams takes, of the topics' next records, the oldest. So a record's place is by the newest timestamp of its topic up
to it, then by topic, then by offset: one topic's records stay in the order of their offsets. Of topics with equal times, one
that feeds the table of a join goes before one that feeds its stream, then the one that the plan names first. Records that
Spark filtered out are not known here, so that they have no part in it.

Every row of the task loop carries the place of the record behind it as `__seq`. Rows of two roads that one record has taken
carry the same; which of them comes first is in `topology.roads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.tasks.forks import record_of
from tidemark.tasks.nodes.columns import Numbers, in_sequence, numbers, with_sequence
from tidemark.tasks.rows import SEQUENCE, TIMESTAMP, Rows
from tidemark.topology.plan import Branch
from tidemark.topology.roads import Roads


class RecordOrder:
    """The order of one sub-topology. Holds no state."""

    def __init__(self, roads: Roads) -> None:
        self._ranks = roads.source_ranks()

    def number(
        self, entered: Sequence[tuple[Branch, Rows]], partials: Sequence[tuple[Branch, pa.Table]]
    ) -> tuple[list[Rows], list[pa.Table], Origins]:
        """Each path's rows, whose `__seq` are their offsets, by their places; and for what goes into an aggregation, with
        columns `last_offset` and `max_ts`, the place of each offset: columns `offset` and `place`. And the way back.
        """
        taken = [(b.source, numbers(rows, SEQUENCE), numbers(rows, TIMESTAMP)) for b, rows in entered]
        taken += [(b.source, numbers(table, "last_offset"), numbers(table, "max_ts")) for b, table in partials]
        walked = {source: _walk([(o, t) for s, o, t in taken if s == source]) for source in {s for s, _, _ in taken}}
        places = _dense([walked[source].keys(offsets, self._ranks[source]) for source, offsets, _ in taken])
        numbered = [
            in_sequence(with_sequence(rows, own))
            for (_, rows), own in zip(entered, places[: len(entered)], strict=True)
        ]
        results = [
            pa.table({"offset": offsets, "place": own})
            for (_, offsets, _), own in zip(taken[len(entered) :], places[len(entered) :], strict=True)
        ]
        return numbered, results, Origins([(source, offsets) for source, offsets, _ in taken], places)


class Origins:
    """Which record is behind a row of the batch: looked up only for what cannot be processed."""

    def __init__(self, taken: Sequence[tuple[int, Numbers]], places: Sequence[Numbers]) -> None:
        """`taken` are sources by number with offsets, `places` those of these offsets."""
        self._taken = taken
        self._places = places
        self._found: dict[int, tuple[int, int]] | None = None

    def of(self, sequence: int) -> tuple[int, int] | None:
        """The number of its source and the offset; None for a row that no record of the batch has led to."""
        if self._found is None:
            self._found = {
                place: (source, offset)
                for (source, offsets), places in zip(self._taken, self._places, strict=True)
                for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)
            }
        return self._found.get(int(record_of(np.array(sequence))))


def placed(rows: Rows, places: pa.Table) -> Rows:
    """Results of an aggregation, whose `__seq` are the offsets of their last records, by the places of these."""
    if not rows.num_rows:
        return rows
    offsets, own = numbers(places, "offset"), numbers(places, "place")
    order = np.argsort(offsets, kind="stable")
    return in_sequence(with_sequence(rows, own[order[np.searchsorted(offsets, numbers(rows, SEQUENCE), sorter=order)]]))


@dataclass(frozen=True)
class _Walked:
    """One source's records in the order of their offsets, with the newest timestamp up to each."""

    offsets: Numbers
    newest_ms: Numbers

    def keys(self, offsets: Numbers, rank: int) -> Numbers:
        """What the places of these offsets go by, least first: a row for each of offset, rank and newest timestamp."""
        newest_ms = self.newest_ms[np.searchsorted(self.offsets, offsets)]
        return np.stack([offsets, np.full(len(offsets), rank), newest_ms])


def _walk(taken: Sequence[tuple[Numbers, Numbers]]) -> _Walked:
    offsets = np.concatenate([offsets for offsets, _ in taken])
    times = np.concatenate([times for _, times in taken])
    order = np.argsort(offsets, kind="stable")
    newest_ms = np.maximum.accumulate(times[order])
    distinct, first = np.unique(offsets[order], return_index=True)
    # Of equal offsets the last has the newest time of all.
    last = np.append(first[1:], len(order)) - 1
    return _Walked(distinct, newest_ms[last])


def _dense(keys: Sequence[Numbers]) -> list[Numbers]:
    """Keys as numbers from 0 on, equal where the keys are."""
    if not keys:
        return []
    joined = np.concatenate(keys, axis=1)
    order = np.lexsort(joined)
    changes = (np.diff(joined[:, order], axis=1) != 0).any(axis=0)
    places = np.zeros(joined.shape[1], dtype=np.int64)
    places[order[1:]] = np.cumsum(changes)
    return np.split(places, np.cumsum([key.shape[1] for key in keys])[:-1])
