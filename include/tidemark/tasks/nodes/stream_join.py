"""The join of two streams in a window: each pair once, when its later row comes (rule 20).

Rows wait for partners in two window stores, `joined_rows`. A row without a partner so far, where the join emits such rows,
also waits in a third one, as the result that it will be, until no partner can come. Its key there: the time after which
its window is closed, 8 bytes; the side, 0 or 1; the key's bytes; the timestamp, 8 bytes; its counter, 4 bytes: all
big-endian, so that the store's order is that of closing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import bytes_list
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.nodes.columns import (
    TIME_BYTES,
    Numbers,
    big_endian,
    in_sequence,
    joined_values,
    key_codes,
    make_rows,
    next_sequence,
    numbers,
    spans,
)
from tidemark.tasks.nodes.joined_rows import COUNTER_BYTES, JoinedRows, Kept
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, decode_rows, encode_rows, value_schema
from tidemark.topology.plan import Column, JoinKind, StreamStreamJoin

_SIDES = (b"\x00", b"\x01")
_TAIL_BYTES = TIME_BYTES + COUNTER_BYTES

Alone = list[tuple[bytes, bytes]]
"""Keys and values of the store of rows without a partner."""


@dataclass(frozen=True)
class StreamStreamJoinOperator:
    """An `Operator` over the left rows (input 0) and the right rows (input 1).

    A pair has the newer timestamp of both and the `__seq` of its later row; pairs of one row come by their partner's
    timestamp, then in the order in which the partners came. Behind them come the rows that stay alone, with nulls, once
    stream time is past their window and grace. A row is late, dropped and counted, when the stream time at the batch's
    start is past its timestamp, the longer side of the window and grace. A deleted row is no record, and is left out.
    """

    node: StreamStreamJoin

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Pair the batch's rows with each other and with those kept, keep them, emit what stays alone."""
        node = self.node
        left, late_left = self._in_time(inputs[0], at)
        right, late_right = self._in_time(inputs[1], at)
        keeps = [
            JoinedRows(stores[spec.name], spec.segment_ms or 1, columns)
            for spec, columns in zip(node.stores, (node.left_columns, node.right_columns), strict=False)
        ]
        # What was kept is read before anything is added: a pair inside the batch must not be found twice.
        held = keeps[0].near(right, node.after_ms, node.before_ms), keeps[1].near(left, node.before_ms, node.after_ms)
        sides = _behind(held[0], keeps[0].add(left)), _behind(held[1], keeps[1].add(right))
        pairs = self._pairs(sides[0].rows, sides[1].rows, held[0].rows.num_rows, held[1].rows.num_rows)
        joined = self._joined(sides[0].rows, sides[1].rows, *pairs)
        if node.kind is not JoinKind.INNER:
            alone = self._alone(sides, [len(h.counters) for h in held], pairs, stores[node.stores[2].name], at)
            joined = pa.concat_tables([joined, self._alone_rows(alone, next_sequence(inputs))])
        return Emitted(joined, late_left + late_right)

    def _in_time(self, rows: Rows, at: BatchTime) -> tuple[Rows, int]:
        rows = in_sequence(rows.filter(pc.invert(rows.column(DELETED))))
        reach_ms = max(self.node.before_ms, self.node.after_ms) + self.node.grace_ms
        is_late = numbers(rows, TIMESTAMP) + reach_ms < at.before_ms
        return (rows.filter(pa.array(~is_late)), int(is_late.sum())) if is_late.any() else (rows, 0)

    def _pairs(self, left: Rows, right: Rows, held_left: int, held_right: int) -> tuple[Numbers, Numbers]:
        """Row numbers of every pair in which at least one row is new, in the order of emission."""
        if not left.num_rows or not right.num_rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        before_ms, after_ms = self.node.before_ms, self.node.after_ms
        left_codes, right_codes = key_codes(left.column(KEY), right.column(KEY))
        left_ms, right_ms = numbers(left, TIMESTAMP), numbers(right, TIMESTAMP)
        new, newer = left_ms[held_left:], right_ms[held_right:]
        ours, theirs = spans(left_codes[held_left:], new - before_ms, new + after_ms, right_codes, right_ms).pairs()
        later, earlier = spans(
            right_codes[held_right:], newer - after_ms, newer + before_ms, left_codes[:held_left], left_ms[:held_left]
        ).pairs()
        lefts = np.concatenate([ours + held_left, earlier])
        rights = np.concatenate([theirs, later + held_right])
        left_place, right_place = numbers(left, SEQUENCE)[lefts], numbers(right, SEQUENCE)[rights]
        right_later = right_place >= left_place
        order = np.lexsort(
            (
                np.where(right_later, lefts, rights),
                np.where(right_later, left_ms[lefts], right_ms[rights]),
                np.where(right_later, rights, lefts),
                right_later,
                np.maximum(left_place, right_place),
            )
        )
        return lefts[order], rights[order]

    def _joined(self, left: Rows, right: Rows, lefts: Numbers, rights: Numbers) -> Rows:
        left, right = left.take(pa.array(lefts)), right.take(pa.array(rights))
        return make_rows(
            self.node.columns,
            keys=left.column(KEY),
            timestamps=np.maximum(numbers(left, TIMESTAMP), numbers(right, TIMESTAMP)),
            sequence=np.maximum(numbers(left, SEQUENCE), numbers(right, SEQUENCE)),
            deleted=None,
            values=joined_values(
                self.node.columns, _values(left, self.node.left_columns), _values(right, self.node.right_columns)
            ),
        )

    def _alone(
        self,
        sides: tuple[Kept, Kept],
        held: Sequence[int],
        pairs: tuple[Numbers, Numbers],
        store: PendingStore,
        at: BatchTime,
    ) -> Alone:
        """Note which rows are alone, and which no more; give those whose window has closed."""
        limit = b"" if at.after_ms == NO_STREAM_TIME else at.after_ms.to_bytes(TIME_BYTES, "big")
        closed: Alone = []
        for side in range(2 if self.node.kind is JoinKind.OUTER else 1):
            kept, old = sides[side], held[side]
            has_partner = np.zeros(kept.rows.num_rows, dtype=np.bool_)
            has_partner[pairs[side]] = True
            found = self._alone_keys(kept, np.flatnonzero(has_partner[:old]), side)
            # Most have had a partner before: each deletion is a record in the changelog.
            waiting = [k for k, v in zip(found, store.get_many(WHOLE, found), strict=True) if v is not None]
            store.put_many(WHOLE, waiting, [None] * len(waiting))
            lonely = np.flatnonzero(~has_partner[old:]) + old
            entries = list(
                zip(self._alone_keys(kept, lonely, side), self._alone_values(kept.rows, lonely, side), strict=True)
            )
            closed += [(key, value) for key, value in entries if key < limit]
            open_ = [(key, value) for key, value in entries if key >= limit]
            store.put_many(WHOLE, [key for key, _ in open_], [value for _, value in open_])
        stored = list(store.range(WHOLE, b"", limit))
        store.put_many(WHOLE, [key for key, _ in stored], [None] * len(stored))
        return sorted(closed + stored)

    def _alone_keys(self, kept: Kept, chosen: Numbers, side: int) -> list[bytes]:
        rows, counters = kept.rows.take(pa.array(chosen)), kept.counters[chosen]
        times = numbers(rows, TIMESTAMP)
        last_partner_ms = times + (self.node.before_ms if side else self.node.after_ms)
        return bytes_list(
            pc.binary_join_element_wise(
                big_endian(last_partner_ms + self.node.grace_ms),
                pa.scalar(_SIDES[side]),
                rows.column(KEY).combine_chunks().cast(pa.binary()),
                big_endian(times),
                big_endian(counters, COUNTER_BYTES),
                b"",
            )
        )

    def _alone_values(self, rows: Rows, chosen: Numbers, side: int) -> list[bytes]:
        node = self.node
        rows = rows.take(pa.array(chosen))
        partner = value_schema(node.left_columns if side else node.right_columns)
        nulls = pa.table([pa.nulls(len(chosen), field.type) for field in partner], partner)
        own = _values(rows, node.right_columns if side else node.left_columns)
        result = joined_values(node.columns, *((nulls, own) if side else (own, nulls)))
        table = pa.table({**result, DELETED: rows.column(DELETED)})
        return [value for value in encode_rows(table, node.columns) if value is not None]

    def _alone_rows(self, alone: Alone, first_sequence: int) -> Rows:
        values = decode_rows([value for _, value in alone], self.node.columns)
        times = b"".join([key[-_TAIL_BYTES:-COUNTER_BYTES] for key, _ in alone])
        return make_rows(
            self.node.columns,
            keys=pa.array([key[TIME_BYTES + 1 : -_TAIL_BYTES] for key, _ in alone], pa.binary()),
            timestamps=np.frombuffer(times, dtype=">i8").astype(np.int64),
            sequence=np.arange(first_sequence, first_sequence + len(alone), dtype=np.int64),
            deleted=None,
            values={name: values.column(name) for name in values.column_names},
        )


def _behind(held: Kept, new: Kept) -> Kept:
    rows = pa.concat_tables([held.rows, new.rows.select(held.rows.schema.names).cast(held.rows.schema)])
    return Kept(rows, np.concatenate([held.counters, new.counters]))


def _values(rows: Rows, columns: Sequence[Column]) -> pa.Table:
    return rows.select(value_schema(columns).names)
