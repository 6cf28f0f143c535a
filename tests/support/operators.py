"""Runs one operator over several batches of dictionaries, committing what each batch wrote before the next.

A row is `{"k": …, "ts": …}` with its value columns; `seq` (by the newest timestamp of the input up to the row, then input,
then place, unless given) and `deleted` may be left out. What comes out has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.operator import BatchTime, Operator
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, rows_schema
from tidemark.topology.plan import Column, StoreSpec

Row = dict[str, Any]
CHECKPOINT = StoreCheckpoint("app", "1", "s", "", 1, 1, {}, 1, 1)
_NAMES = {KEY: "k", TIMESTAMP: "ts", SEQUENCE: "seq", DELETED: "deleted"}


class Harness:
    """One operator over in-memory stores. `upstream` runs an operator on an input before the operator sees it.

    `input_columns` are those of each input: unless given, the node's left and right columns, or else its columns.
    """

    def __init__(
        self,
        op: Any,
        store_specs: Sequence[StoreSpec],
        *,
        input_columns: Sequence[Sequence[Column]] | None = None,
        upstream: Mapping[int, Operator] | None = None,
    ) -> None:
        self.op: Operator = op
        self.specs = {spec.name: spec for spec in store_specs}
        self.stores = {spec.name: MemoryStore() for spec in store_specs}
        self.upstream = upstream or {}
        self.late_rows = 0
        self.marks: dict[str, int] = {}
        self.written: dict[str, dict[bytes, bytes | None]] = {}
        self._columns = input_columns or _columns_of(op.node)

    def batch(
        self, inputs: Sequence[Sequence[Row]], before: int = NO_STREAM_TIME, after: int = NO_STREAM_TIME
    ) -> list[Row]:
        """Rows that the operator emits for a batch with these stream times; what it wrote is committed."""
        pending = {name: PendingStore(store) for name, store in self.stores.items()}
        at = BatchTime(before, after, 0, dict(self.marks))
        tables = [rows_of(rows, columns) for rows, columns in zip(numbered(inputs), self._columns, strict=True)]
        for i, op in self.upstream.items():
            tables[i] = op.run([tables[i]], pending, at).rows
        emitted = self.op.run(tables, pending, at)
        self.late_rows += emitted.late_rows
        self.marks |= emitted.marks_ms
        for name, store in pending.items():
            self.written[name] = {k: v for w in store.writes() for k, v in zip(w.keys, w.values, strict=True)}
            self.stores[name].put_many(store.writes(), CHECKPOINT, self._first_live(name, self.marks.get(name, after)))
        return dicts_of(emitted.rows)

    def contents(self, name: str) -> dict[bytes, bytes]:
        """Everything that is committed in a store."""
        store = self.stores[name]
        return {key: value for segment in store.segments() for key, value in store.items(segment)}

    def _first_live(self, name: str, stream_time_ms: int) -> int | None:
        spec = self.specs[name]
        if spec.retention_ms is None or spec.segment_ms is None or stream_time_ms == NO_STREAM_TIME:
            return None
        return (stream_time_ms - spec.retention_ms) // spec.segment_ms


def numbered(inputs: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows with `seq`, each input in its order."""
    newest = [list(accumulate((row["ts"] for row in rows), max)) for rows in inputs]
    order = sorted((newest[i][j], i, j) for i, rows in enumerate(inputs) for j in range(len(rows)))
    places = {(i, j): seq for seq, (_, i, j) in enumerate(order)}
    given = [[{"seq": places[i, j], **row} for j, row in enumerate(rows)] for i, rows in enumerate(inputs)]
    return [sorted(rows, key=lambda row: row["seq"]) for rows in given]


def rows_of(rows: Sequence[Row], columns: Sequence[Column]) -> Rows:
    """Dictionaries as the task loop's rows."""
    schema = rows_schema(columns)
    listed = [{name: row.get(_NAMES.get(name, name)) for name in schema.names} for row in rows]
    for row in listed:
        row[DELETED] = bool(row[DELETED])
    return pa.Table.from_pylist(listed, schema)


def dicts_of(rows: Rows) -> list[Row]:
    """The task loop's rows as dictionaries; checks that they come in the order of `__seq`."""
    listed = [{_NAMES.get(name, name): value for name, value in row.items()} for row in rows.to_pylist()]
    assert [row["seq"] for row in listed] == sorted(row["seq"] for row in listed)
    return listed


def _columns_of(node: Any) -> Sequence[Sequence[Column]]:
    if hasattr(node, "left_columns"):
        return (node.left_columns, node.right_columns)
    return [node.columns for _ in node.inputs]
