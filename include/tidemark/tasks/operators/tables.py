"""Tables: the last row of each key, and the joins that look up a row by its key.

A join sees a table as of each record's position in the batch (see invariant: order in a batch). The table's own node has
already run, so its store contains the whole batch, and `TableHistory` goes back within it. If one record reaches both sides,
`Met` decides which side it reaches first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
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
)
from tidemark.tasks.operators.table_versions import TableHistory
from tidemark.tasks.rows import (
    DELETED,
    KEY,
    SEQUENCE,
    STORED_TIME,
    TIMESTAMP,
    Rows,
    encode_rows,
    no_rows,
    rows_schema,
    value_schema,
)
from tidemark.topology.paths import LEFT_FIRST, RIGHT_FIRST, Met
from tidemark.topology.plan import JoinKind, StreamTableJoin, TableSource, TableTableJoin


@dataclass(frozen=True)
class TableSourceOperator:
    """An `Operator` with one input: rows that replace or delete the row of their key, in the order of `__seq`.

    Emits every update, including the deletion of a key that does not exist, as Kafka Streams' `KTableSource` does. Rows without
    a key are dropped. The store maps the key's bytes to the row with its timestamp.
    """

    node: TableSource

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Keep the last row of each key, and emit the updates."""
        rows = inputs[0]
        if rows.num_rows and rows.column(KEY).null_count:
            rows = rows.filter(pc.is_valid(rows.column(KEY)))
        if not rows.num_rows:
            return Emitted(no_rows(self.node.columns))
        schema = rows_schema(self.node.columns)
        rows = in_sequence(rows).select(schema.names).cast(schema)
        store = stores[self.node.stores[0].name]
        (codes,) = key_codes(rows.column(KEY))
        last = np.zeros(codes.max() + 1, dtype=np.int64)
        np.maximum.at(last, codes, np.arange(len(codes), dtype=np.int64))
        deleted = flags(rows, DELETED)[last]
        if deleted.any():
            # Each deletion is a record in the changelog, so skip those of keys that were never stored.
            names = bytes_list(rows.column(KEY).take(pa.array(last[deleted])))
            was_stored = [value is not None for value in store.get_many(WHOLE, names)]
            keep = ~deleted
            keep[deleted] = was_stored
            last = last[keep]
        kept = rows.take(pa.array(np.sort(last)))
        store.put_many(WHOLE, bytes_list(kept.column(KEY)), encode_rows(kept, (*self.node.columns, STORED_TIME)))
        return Emitted(rows)


@dataclass(frozen=True)
class StreamTableJoinOperator:
    """An `Operator` with the stream's rows (input 0) and the table's updates (input 1).

    Joins each row of the stream with the table's row at that point: an update counts if it has a smaller `__seq` or was there
    before the batch; `met` decides about an equal `__seq`. Keeps nothing. Emits the stream's timestamps and `__seq`. A deleted
    row in the stream is not a record and is dropped; a row without a key finds nothing (`KStreamKTableJoinProcessor`).
    """

    node: StreamTableJoin
    met: Met = RIGHT_FIRST

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Look up the table's row for every row of the stream."""
        node = self.node
        rows, updates = in_sequence(inputs[0].filter(pc.invert(inputs[0].column(DELETED)))), in_sequence(inputs[1])
        if not rows.num_rows:
            return Emitted(no_rows(node.columns))
        store = stores[node.table_store.name]
        history = TableHistory(rows.column(KEY), updates, numbers(updates, SEQUENCE), store, node.right_columns)
        found = history.before(numbers(rows, SEQUENCE) + self.met.left_sees_right)
        joined = make_rows(
            node.columns,
            keys=rows.column(KEY),
            timestamps=numbers(rows, TIMESTAMP),
            sequence=numbers(rows, SEQUENCE),
            deleted=None,
            values=joined_values(node.columns, rows.select(value_schema(node.left_columns).names), found.values()),
        )
        return Emitted(joined if node.kind is JoinKind.LEFT else joined.filter(pa.array(found.present)))


@dataclass(frozen=True)
class TableTableJoinOperator:
    """An `Operator` with the updates of two tables. Keeps nothing: the tables' own stores contain everything.

    Every update of either side emits the joined row as of then, or a deleted row, under the conditions of Kafka Streams'
    `KTableKTableInnerJoin` and its variants: the deletion of a key that does not exist is passed on if the other side has a
    row. The timestamp is the newer one of the update and of the other side's row.
    """

    node: TableTableJoin
    met: Met = LEFT_FIRST

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Join at every update."""
        node = self.node
        left, right = in_sequence(inputs[0]), in_sequence(inputs[1])
        if not left.num_rows + right.num_rows:
            return Emitted(no_rows(node.columns))
        hidden = [KEY, TIMESTAMP, SEQUENCE, DELETED]
        updates = pa.concat_tables([left.select(hidden), right.select(hidden)])
        keys, is_left = updates.column(KEY), np.arange(updates.num_rows) < left.num_rows
        left_places, right_places = np.arange(left.num_rows), np.arange(right.num_rows)
        lefts = TableHistory(keys, left, left_places, stores[node.left_store.name], node.left_columns)
        rights = TableHistory(keys, right, right_places, stores[node.right_store.name], node.right_columns)
        left_seen = np.concatenate([left_places + 1, _seen(left, right, self.met.right_sees_left)])
        right_seen = np.concatenate([_seen(right, left, self.met.left_sees_right), right_places + 1])
        left_now, right_now = lefts.before(left_seen), rights.before(right_seen)
        # The versions before the update itself; the other side does not change with it.
        left_was, right_was = lefts.before(left_seen - is_left), rights.before(right_seen - ~is_left)
        own_now = np.where(is_left, left_now.present, right_now.present)
        other = np.where(is_left, right_now.present, left_now.present)
        own_was = np.where(is_left, left_was.present, right_was.present)
        emitted, deleted = self._judged(is_left, own_was, own_now, other)
        joined = joined_values(node.columns, left_now.values(), right_now.values())
        other_ms = np.where(is_left, right_now.timestamps, left_now.timestamps)
        rows = make_rows(
            node.columns,
            keys=keys,
            timestamps=np.maximum(numbers(updates, TIMESTAMP), other_ms),
            sequence=numbers(updates, SEQUENCE),
            deleted=deleted,
            values={name: pc.if_else(pa.array(deleted), None, column) for name, column in joined.items()},
        )
        order = np.lexsort((is_left if self.met.right_first else ~is_left, numbers(updates, SEQUENCE)))
        return Emitted(rows.take(pa.array(order[emitted[order]])))

    def _judged(self, is_left: Flags, own_was: Flags, own_now: Flags, other: Flags) -> tuple[Flags, Flags]:
        """Return which updates are emitted, and which of them are deletions."""
        if self.node.kind is JoinKind.INNER:
            return other, ~own_now
        either = other | own_was | own_now
        if self.node.kind is JoinKind.OUTER:
            return either, ~(own_now | other)
        return np.where(is_left, either, other), is_left & ~own_now


def _seen(updates: Rows, others: Rows, sees_equal: bool) -> Numbers:
    """Return, for each of `others`, how many of `updates` it sees."""
    seen: Numbers = np.searchsorted(numbers(updates, SEQUENCE), numbers(others, SEQUENCE) + sees_equal)
    return seen
