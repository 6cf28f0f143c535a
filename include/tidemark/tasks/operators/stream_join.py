"""The join of two streams in a window, record by record as in Kafka Streams' `KStreamKStreamJoin` (emit interval 0).

Rows wait for partners in two window stores (`joined_rows`). Nothing here depends on where batches end: the order of the records
alone decides which partners a row finds, and when a row without a partner is emitted. Three times are committed beside the
stream time (`Emitted.marks_ms`): for each window store the newest timestamp put into it, and for `waiting` the time that
decides when it is scanned again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.columns import (
    Flags,
    Numbers,
    flags,
    in_sequence,
    joined_values,
    key_codes,
    make_rows,
    numbers,
    spans,
)
from tidemark.tasks.operators.joined_rows import JoinedRows, Kept
from tidemark.tasks.operators.unmatched_rows import NEVER_MS, Waiting, key_of, time_of, waiting_keys
from tidemark.tasks.rows import (
    DELETED,
    KEY,
    SEQUENCE,
    TIMESTAMP,
    Rows,
    decode_rows,
    encode_rows,
    no_rows,
    value_schema,
)
from tidemark.topology.paths import LEFT_FIRST, Met
from tidemark.topology.plan import Column, JoinKind, StreamStreamJoin

_CLOSED, _OWN = 0, 1
"""Among the results of one record, rows without a partner that it closes come before its own results."""

_BEFORE_THE_BATCH = -1
_NO_PLACE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Batch:
    """The records of both sides in processing order. All columns have one length.

    `rows` are row numbers in the input of the side. `is_live` means that the record has key and value. `stream_ms` is the
    join's stream time including the record. `newest_ms` is, for each side, the newest timestamp put into that side's window
    store up to and including the record.
    """

    sides: Numbers
    rows: Numbers
    sequence: Numbers
    times: Numbers
    is_live: Flags
    is_keyless: Flags
    stream_ms: Numbers
    newest_ms: tuple[Numbers, Numbers]

    def places(self, side: int) -> Numbers:
        """Return the positions of one side's live rows, in order."""
        return np.flatnonzero(self.is_live & (self.sides == side))


@dataclass(frozen=True)
class _Pairs:
    """Row numbers of pairs among each side's kept and new rows, with the position of the later row, in emission order."""

    lefts: Numbers
    rights: Numbers
    places: Numbers
    right_later: Flags


@dataclass(frozen=True)
class _Part:
    """Results in the order in which each record produces them; `phases` distinguishes `_CLOSED` and `_OWN`."""

    rows: Rows
    places: Numbers
    phases: Numbers


@dataclass(frozen=True)
class StreamStreamJoinOperator:
    """An `Operator` with the left rows (input 0) and the right rows (input 1).

    A pair has the newer timestamp of both rows and the `__seq` of the later one. Pairs of one row are ordered by the timestamp
    of the partner, then by the order in which the partners arrived. A row without a partner is emitted with nulls and its own
    timestamp, before the pairs of the row that closes it: the first row newer than all before that finds its window and grace
    over. It has that row's `__seq`. A late row joins what the other store still holds; a row counts as late if it neither found
    a partner, nor was emitted, nor kept. A deleted row is not a record. A row without a key is not one either, except on a side
    whose rows are emitted without a partner: there it is emitted at once.
    """

    node: StreamStreamJoin
    met: Met = LEFT_FIRST

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Pair the batch's rows with each other and with kept rows, keep them, and emit rows that found no partner."""
        node = self.node
        given = in_sequence(inputs[0]), in_sequence(inputs[1])
        if not given[0].num_rows + given[1].num_rows:
            return Emitted(no_rows(node.columns))
        batch = self._ordered(given, at)
        live = [_only(rows, batch.is_live[batch.sides == side]) for side, rows in enumerate(given)]
        window_stores = node.stores[:2]
        keeps = [
            JoinedRows(stores[spec.name], spec.segment_ms or 1, columns)
            for spec, columns in zip(window_stores, (node.left_columns, node.right_columns), strict=True)
        ]
        # Kept rows are read before anything is added: otherwise a pair within the batch would be found twice.
        held = (
            keeps[0].near(live[1], node.after_ms, node.before_ms),
            keeps[1].near(live[0], node.before_ms, node.after_ms),
        )
        retention_ms = node.before_ms + node.after_ms + node.grace_ms
        # A row just too old to be found may still wait to be emitted alone; its counter distinguishes it from the others.
        is_kept = [(batch.times >= batch.newest_ms[side] - retention_ms)[batch.places(side)] for side in (0, 1)]
        sides = [_behind(held[side], keeps[side].add(live[side], is_kept[side])) for side in (0, 1)]
        pairs = self._pairs(batch, sides, held, retention_ms)
        parts = [self._joined(batch, sides, pairs)]
        marks = {spec.name: int(batch.newest_ms[side][-1]) for side, spec in enumerate(window_stores)}
        is_done = np.zeros(len(batch.sides), dtype=np.bool_)
        is_done[pairs.places] = True
        for side in (0, 1):
            is_done[batch.places(side)[is_kept[side]]] = True
        if node.kind is not JoinKind.INNER:
            name = node.stores[2].name
            waiting = Waiting(node, stores[name], at.marks_ms.get(name, NEVER_MS))
            closed, alone = self._alone(batch, sides, held, pairs, waiting, stores[name])
            waiting.write()
            marks[name] = waiting.look_ms
            is_done[alone] = True
            parts += [closed, self._at_once(batch, given, alone)]
        late = batch.is_live & ~is_done
        return Emitted(_in_place(parts), int(late.sum()), marks)

    def _ordered(self, given: tuple[Rows, Rows], at: BatchTime) -> _Batch:
        sides = np.repeat([0, 1], [rows.num_rows for rows in given])
        sequence = np.concatenate([numbers(rows, SEQUENCE) for rows in given])
        order = np.lexsort((1 - sides if self.met.right_first else sides, sequence))
        times = np.concatenate([numbers(rows, TIMESTAMP) for rows in given])[order]
        has_key = np.concatenate([pc.is_valid(rows.column(KEY)).to_numpy() for rows in given])[order]
        has_value = ~np.concatenate([flags(rows, DELETED) for rows in given])[order]
        sides, is_live = sides[order], has_key & has_value
        newest_ms = [
            _newest(
                # `KStreamJoinWindow` also puts null values into its store, and they advance the store's own time.
                np.where(has_key & (sides == side), times, NO_STREAM_TIME),
                at.marks_ms.get(spec.name, NO_STREAM_TIME),
            )
            for side, spec in enumerate(self.node.stores[:2])
        ]
        return _Batch(
            sides=sides,
            rows=np.concatenate([np.arange(rows.num_rows) for rows in given])[order],
            sequence=sequence[order],
            times=times,
            is_live=is_live,
            is_keyless=~has_key & has_value,
            stream_ms=_newest(times, at.before_ms),
            newest_ms=(newest_ms[0], newest_ms[1]),
        )

    def _pairs(self, batch: _Batch, sides: Sequence[Kept], held: Sequence[Kept], retention_ms: int) -> _Pairs:
        """Return every pair with at least one new row, at the position where its later row finds the other side's."""
        found = [self._partners(batch, sides, held, retention_ms, side) for side in (0, 1)]
        lefts = np.concatenate([found[0][0], found[1][1]])
        rights = np.concatenate([found[0][1], found[1][0]])
        places = np.concatenate([found[0][2], found[1][2]])
        # The partners of each record are already in order.
        order = np.argsort(places, kind="stable")
        right_later = np.repeat([False, True], [len(found[0][0]), len(found[1][0])])
        return _Pairs(lefts[order], rights[order], places[order], right_later[order])

    def _partners(
        self, batch: _Batch, sides: Sequence[Kept], held: Sequence[Kept], retention_ms: int, side: int
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return, for each new row of a side and each partner that arrived before it: row, partner, position of the row."""
        places, other_places = batch.places(side), batch.places(1 - side)
        first, others = held[side].rows.num_rows, sides[1 - side].rows
        if not len(places) or not others.num_rows:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing, nothing
        before_ms, after_ms = self._reach(side)
        times = batch.times[places]
        # A window store returns nothing older than its retention, measured from the newest timestamp put into that store.
        oldest_ms = batch.newest_ms[1 - side][places] - retention_ms + 1
        own_codes, other_codes = key_codes(sides[side].rows.column(KEY), others.column(KEY))
        own, partners = spans(
            own_codes[first:],
            np.maximum(times - before_ms, oldest_ms),
            times + after_ms,
            other_codes,
            numbers(others, TIMESTAMP),
        ).pairs()
        came = np.concatenate([np.full(held[1 - side].rows.num_rows, _BEFORE_THE_BATCH), other_places])
        is_earlier = came[partners] < places[own]
        own, partners = own[is_earlier], partners[is_earlier]
        return own + first, partners, places[own]

    def _reach(self, side: int) -> tuple[int, int]:
        """Return how long before and after a row of this side its partners may be."""
        node = self.node
        return (node.after_ms, node.before_ms) if side else (node.before_ms, node.after_ms)

    def _joined(self, batch: _Batch, sides: Sequence[Kept], pairs: _Pairs) -> _Part:
        left, right = sides[0].rows.take(pa.array(pairs.lefts)), sides[1].rows.take(pa.array(pairs.rights))
        rows = make_rows(
            self.node.columns,
            keys=left.column(KEY),
            timestamps=np.maximum(numbers(left, TIMESTAMP), numbers(right, TIMESTAMP)),
            sequence=batch.sequence[pairs.places],
            deleted=None,
            values=joined_values(
                self.node.columns, _values(left, self.node.left_columns), _values(right, self.node.right_columns)
            ),
        )
        return _Part(rows, pairs.places, np.full(len(pairs.places), _OWN))

    def _alone(
        self,
        batch: _Batch,
        sides: Sequence[Kept],
        held: Sequence[Kept],
        pairs: _Pairs,
        waiting: Waiting,
        store: PendingStore,
    ) -> tuple[_Part, Numbers]:
        """Return waiting rows that are closed, and the positions of rows without key or that need not wait for a partner.

        What is scanned, and when, depends on all records before, so the records are processed one by one.
        """
        puts: dict[int, tuple[bytes, bytes]] = {}
        met: dict[int, list[bytes]] = defaultdict(list)
        met_stored: dict[int, list[bytes]] = defaultdict(list)
        for side in self._outer_sides:
            kept, first, places = sides[side], held[side].rows.num_rows, batch.places(side)
            # The earlier row of a pair has a partner from this position on, the later one at once.
            came_later = pairs.right_later if side else ~pairs.right_later
            partnered = np.full(kept.rows.num_rows, _NO_PLACE)
            mine = (pairs.rights if side else pairs.lefts)[~came_later]
            np.minimum.at(partnered, mine, pairs.places[~came_later])
            has_partner = np.zeros(len(batch.sides), dtype=np.bool_)
            has_partner[pairs.places[came_later]] = True
            lonely = np.flatnonzero(~has_partner[places]) + first
            keys = waiting_keys(kept, lonely, side)
            values = self._alone_values(kept.rows.take(pa.array(lonely)), side)
            puts.update(zip(places[lonely - first].tolist(), zip(keys, values, strict=True), strict=True))
            # Most kept rows have had a partner before.
            old = np.flatnonzero(partnered[:first] != _NO_PLACE)
            old_keys = waiting_keys(kept, old, side)
            waited = store.get_many(WHOLE, old_keys)
            for key, place, value in zip(old_keys, partnered[old].tolist(), waited, strict=True):
                if value is not None:
                    met_stored[place].append(key)
            for key, place in zip(keys, partnered[lonely].tolist(), strict=True):
                met[place].append(key)
        return self._one_by_one(batch, waiting, puts, met, met_stored)

    def _one_by_one(
        self,
        batch: _Batch,
        waiting: Waiting,
        puts: Mapping[int, tuple[bytes, bytes]],
        met: Mapping[int, Sequence[bytes]],
        met_stored: Mapping[int, Sequence[bytes]],
    ) -> tuple[_Part, Numbers]:
        after_ms = [self._reach(side)[1] for side in (0, 1)]
        closed: list[tuple[bytes, bytes]] = []
        closed_places: list[int] = []
        at_once: list[int] = []
        columns = (batch.sides, batch.times, batch.stream_ms, batch.is_live, batch.is_keyless)
        for place, (side, time, stream_ms, is_live, is_keyless) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if is_keyless and side in self._outer_sides:
                at_once.append(place)
            if not is_live:
                continue
            if time == stream_ms and waiting.due(side, stream_ms):
                found = waiting.close(stream_ms)
                closed += found
                closed_places += [place] * len(found)
            if place in met_stored:
                waiting.discard(met_stored[place], stored=True)
            if place in met:
                waiting.discard(met[place], stored=False)
            if place in puts:
                if time + after_ms[side] < stream_ms:
                    at_once.append(place)
                else:
                    waiting.put(*puts[place], time)
        return self._closed(batch, closed, np.array(closed_places, dtype=np.int64)), np.array(at_once, dtype=np.int64)

    def _closed(self, batch: _Batch, closed: Sequence[tuple[bytes, bytes]], places: Numbers) -> _Part:
        values = decode_rows([value for _, value in closed], self.node.columns)
        rows = make_rows(
            self.node.columns,
            keys=pa.array([key_of(key) for key, _ in closed], pa.binary()),
            timestamps=np.array([time_of(key) for key, _ in closed], dtype=np.int64),
            sequence=batch.sequence[places],
            deleted=None,
            values={name: values.column(name) for name in values.column_names},
        )
        return _Part(rows, places, np.full(len(places), _CLOSED))

    def _at_once(self, batch: _Batch, given: Sequence[Rows], places: Numbers) -> _Part:
        parts = [places[batch.sides[places] == side] for side in (0, 1)]
        tables = []
        for side, own in enumerate(parts):
            rows = given[side].take(pa.array(batch.rows[own]))
            tables.append(
                make_rows(
                    self.node.columns,
                    keys=rows.column(KEY),
                    timestamps=batch.times[own],
                    sequence=batch.sequence[own],
                    deleted=None,
                    values=self._with_nulls(rows, side),
                )
            )
        return _Part(pa.concat_tables(tables), np.concatenate(parts), np.full(len(places), _OWN))

    @property
    def _outer_sides(self) -> tuple[int, ...]:
        return {JoinKind.INNER: (), JoinKind.LEFT: (0,), JoinKind.OUTER: (0, 1)}[self.node.kind]

    def _with_nulls(self, rows: Rows, side: int) -> dict[str, pa.ChunkedArray]:
        node = self.node
        partner = value_schema(node.left_columns if side else node.right_columns)
        nulls = pa.table([pa.nulls(rows.num_rows, field.type) for field in partner], partner)
        own = _values(rows, node.right_columns if side else node.left_columns)
        return joined_values(node.columns, *((nulls, own) if side else (own, nulls)))

    def _alone_values(self, rows: Rows, side: int) -> list[bytes]:
        table = pa.table({**self._with_nulls(rows, side), DELETED: rows.column(DELETED)})
        return [value for value in encode_rows(table, self.node.columns) if value is not None]


def _behind(held: Kept, new: Kept) -> Kept:
    rows = pa.concat_tables([held.rows, new.rows.select(held.rows.schema.names).cast(held.rows.schema)])
    return Kept(rows, np.concatenate([held.counters, new.counters]))


def _only(rows: Rows, chosen: Flags) -> Rows:
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def _values(rows: Rows, columns: Sequence[Column]) -> pa.Table:
    return rows.select(value_schema(columns).names)


def _newest(times: Numbers, before_ms: int) -> Numbers:
    return np.maximum(np.maximum.accumulate(times), before_ms)


def _in_place(parts: Sequence[_Part]) -> Rows:
    rows = pa.concat_tables([part.rows for part in parts])
    places = np.concatenate([part.places for part in parts])
    order = np.lexsort((np.concatenate([part.phases for part in parts]), places))
    return rows.take(pa.array(order))
