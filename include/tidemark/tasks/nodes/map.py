"""Stateless SQL behind a stateful node, run by DuckDB on the batch's Arrow rows.

Expressions are Spark SQL as everywhere in a topology; sqlglot translates them. Names resolve without regard to case, as in
Spark. A value that cannot be computed is null, as in Spark without ANSI mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from tidemark.stores.pending import PendingStore
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, no_rows, rows_schema
from tidemark.topology.plan import Column, Map

_DUCK_TYPE = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "REAL",
    "DOUBLE": "DOUBLE",
    "STRING": "VARCHAR",
}


class MapOperator:
    """Implements `Operator` for `Map`; `columns` are those of its input.

    A deleted row keeps its key and has no values, so only the key's column could be asked for: it goes on unless the key
    changes, and the table behind sees the deletion.
    """

    def __init__(self, node: Map, columns: Sequence[Column]) -> None:
        self._node = node
        key = f"CAST(({_duck(node.key, columns)}) AS VARCHAR)" if node.key is not None else KEY
        selected = node.selected or tuple((column.name, f"`{column.name}`") for column in node.columns)
        types = {column.name: _DUCK_TYPE[column.type] for column in node.columns}
        values = ", ".join(
            f'TRY_CAST(({_duck(expression, columns)}) AS {types[name]}) AS "{name}"' for name, expression in selected
        )
        kept = []
        if node.condition is not None:
            kept.append(f"({_duck(node.condition, columns)})")
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


def _duck(text: str, columns: Sequence[Column]) -> str:
    """A Spark SQL expression over `columns` in DuckDB's words."""
    tree = sqlglot.parse_one(text, dialect="spark")
    known = {column.name.casefold(): column.name for column in columns}
    for column in list(tree.find_all(exp.Column)):
        column.replace(exp.column(known[column.name.casefold()], quoted=True)) if column is not tree else None
    if isinstance(tree, exp.Column):
        tree = exp.column(known[tree.name.casefold()], quoted=True)
    return tree.sql(dialect="duckdb")
