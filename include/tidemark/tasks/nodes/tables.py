"""Tables: the last row of each key, and the joins that look a row up by its key.

A join sees a table as it stood at each record's place in the batch (rule 20). The table's own node has run before, so its
store holds the whole batch already: `TableHistory` goes back in it.
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
from tidemark.tasks.nodes.columns import (
    Flags,
    flags,
    in_sequence,
    joined_values,
    key_codes,
    make_rows,
    numbers,
    spans,
)
from tidemark.tasks.nodes.history import TableHistory, Versions
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, encode_rows, no_rows, rows_schema, value_schema
from tidemark.topology.plan import JoinKind, StreamTableJoin, TableSource, TableTableJoin


@dataclass(frozen=True)
class TableSourceOperator:
    """An `Operator` over one input: rows that replace, or delete, the row of their key.

    Emits every update by `__seq`, but no deletion of a key that is not there. Store: the key's bytes, the row.
    """

    node: TableSource

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Keep the last row of each key, emit the updates."""
        if not inputs[0].num_rows:
            return Emitted(no_rows(self.node.columns))
        schema = rows_schema(self.node.columns)
        rows = in_sequence(inputs[0]).select(schema.names).cast(schema)
        store = stores[self.node.stores[0].name]
        (codes,) = key_codes(rows.column(KEY))
        places = np.arange(len(codes), dtype=np.int64)
        # Whether a key is there matters for its deletion only: without one nothing is read.
        was_stored = np.ones(codes.max() + 1, dtype=np.bool_)
        had_row = np.ones(len(codes), dtype=np.bool_)
        deleted = flags(rows, DELETED)
        if deleted.any():
            newest = spans(codes, np.zeros_like(codes), places - 1, codes, places).newest()
            first = newest < 0
            held = store.get_many(WHOLE, bytes_list(rows.column(KEY).filter(pa.array(first))))
            was_stored[codes[first]] = [value is not None for value in held]
            had_row = np.where(first, was_stored[codes], ~deleted[newest])
        last = np.zeros(codes.max() + 1, dtype=np.int64)
        np.maximum.at(last, codes, places)
        kept = rows.take(pa.array(np.sort(last[~deleted[last] | was_stored])))
        store.put_many(WHOLE, bytes_list(kept.column(KEY)), encode_rows(kept, self.node.columns))
        return Emitted(rows.filter(pa.array(~deleted | had_row)))


@dataclass(frozen=True)
class StreamTableJoinOperator:
    """An `Operator` over the stream's rows (input 0) and the table's updates (input 1).

    Each row of the stream with the table's row as it stood then: what has a smaller `__seq`, or was there before the batch.
    Keeps nothing, emits the stream's timestamps and `__seq`. A deleted row in the stream is no record, and is left out.
    """

    node: StreamTableJoin

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Look every row of the stream up."""
        node = self.node
        rows, updates = in_sequence(inputs[0].filter(pc.invert(inputs[0].column(DELETED)))), in_sequence(inputs[1])
        if not rows.num_rows:
            return Emitted(no_rows(node.columns))
        store = stores[node.table_store.name]
        history = TableHistory(rows.column(KEY), updates, numbers(updates, SEQUENCE), store, node.right_columns)
        found = history.before(numbers(rows, SEQUENCE))
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
    """An `Operator` over the updates of two tables. Keeps nothing: the tables' own stores have all there is.

    Every update of either side gives the joined row as it then is, or a deleted row where there was one and now is none.
    Of equal `__seq` the left comes first. Timestamp: the newer of both sides' as far as the batch knows them, for a row
    that was committed before it has none.
    """

    node: TableTableJoin

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Join at every update."""
        node = self.node
        left, right = inputs
        if not left.num_rows + right.num_rows:
            return Emitted(no_rows(node.columns))
        hidden = [KEY, TIMESTAMP, SEQUENCE, DELETED]
        updates = pa.concat_tables([left.select(hidden), right.select(hidden)])
        order = np.argsort(numbers(updates, SEQUENCE), kind="stable")
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        keys = updates.column(KEY)
        lefts = TableHistory(keys, left, places[: left.num_rows], stores[node.left_store.name], node.left_columns)
        rights = TableHistory(keys, right, places[left.num_rows :], stores[node.right_store.name], node.right_columns)
        left_now, right_now = lefts.before(places + 1), rights.before(places + 1)
        was = self._is_result(lefts.before(places), rights.before(places))
        now = self._is_result(left_now, right_now)
        deleted = ~now
        joined = joined_values(node.columns, left_now.values(), right_now.values())
        rows = make_rows(
            node.columns,
            keys=keys,
            timestamps=np.maximum.reduce([numbers(updates, TIMESTAMP), left_now.timestamps, right_now.timestamps]),
            sequence=numbers(updates, SEQUENCE),
            deleted=deleted,
            values={name: pc.if_else(pa.array(deleted), None, column) for name, column in joined.items()},
        )
        return Emitted(rows.take(pa.array(order[(now | was)[order]])))

    def _is_result(self, left: Versions, right: Versions) -> Flags:
        if self.node.kind is JoinKind.INNER:
            return left.present & right.present
        return left.present if self.node.kind is JoinKind.LEFT else left.present | right.present
