"""Stateless SQL behind a stateful node, run by DuckDB on the batch's Arrow rows.

Expressions are Spark SQL as everywhere in a topology; `tidemark.topology.behind` translates those whose result is surely
Spark's, and refuses others when the topology is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from tidemark.stores.pending import PendingStore
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, no_rows, rows_schema
from tidemark.topology.behind import DUCK_TYPE, duck_sql
from tidemark.topology.plan import Column, Map


class MapOperator:
    """Implements `Operator` for `Map`; `columns` are those of its input.

    A deleted row keeps its key and has no values to ask for: it passes every condition, so that the table or topic behind
    sees the deletion; where the key changes it is left out.
    """

    def __init__(self, node: Map, columns: Sequence[Column]) -> None:
        self._node = node
        key = f"CAST(({duck_sql(node.key, columns, node.node)}) AS VARCHAR)" if node.key is not None else KEY
        selected = node.selected or tuple((column.name, f"`{column.name}`") for column in node.columns)
        types = {column.name: DUCK_TYPE[column.type] for column in node.columns}
        values = ", ".join(
            f'TRY_CAST(({duck_sql(expression, columns, node.node)}) AS {types[name]}) AS "{name}"'
            for name, expression in selected
        )
        kept = []
        if node.condition is not None:
            kept.append(f"({DELETED} OR {duck_sql(node.condition, columns, node.node)})")
        if node.key is not None:
            kept.append(f"({key}) IS NOT NULL")
        where = f" WHERE {' AND '.join(kept)}" if kept else ""
        self._sql = (
            f"SELECT {key} AS {KEY}, {TIMESTAMP}, {SEQUENCE}, {DELETED}, {values} FROM rows{where} ORDER BY {SEQUENCE}"
        )
        self._schema = rows_schema(node.columns)

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        (rows,) = inputs
        if not rows.num_rows:
            return Emitted(no_rows(self._node.columns))
        with duckdb.connect(":memory:", config={"threads": 1}) as session:
            session.register("rows", rows)
            table: pa.Table = session.sql(self._sql).to_arrow_table()
        return Emitted(table.cast(self._schema))
