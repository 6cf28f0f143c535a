"""Stateless SQL after a stateful node, run by DuckDB on the batch's Arrow rows.

Expressions are Spark SQL as everywhere in a topology. `tidemark.topology.sql.duckdb` translates those whose result is certain
to be Spark's, and refuses others when the topology is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from tidemark.errors import BufferFull
from tidemark.stores.pending import PendingStore
from tidemark.tasks.operator import BatchTime, Emitted
from tidemark.tasks.operators.columns import in_sequence
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, no_rows, rows_schema
from tidemark.topology.plan import Column, Map
from tidemark.topology.schema import KEY as RECORD_KEY
from tidemark.topology.sql.duckdb import DUCK_TYPE, duck_sql


class MapOperator:
    """Implements `Operator` for `Map`; `columns` are those of its input.

    A deleted row has no values: conditions and new keys are evaluated with nulls, as Kafka Streams does with a null value. Only
    the columns of its key and window have the values that the node gave them which deleted it: in Kafka Streams they are the
    key. A deleted row that passes remains a deletion, and its other columns are null whatever was selected. A row whose new key
    is null is dropped, unless the node keeps null keys.
    """

    def __init__(self, node: Map, columns: Sequence[Column], memory_bytes: int) -> None:
        """`memory_bytes` bounds the memory that DuckDB uses at a time, not counting results that it has returned."""
        self._node = node
        key = KEY
        if node.key is not None and node.key != RECORD_KEY.name:
            key = f"CAST(({duck_sql(node.key, columns, node.node)}) AS VARCHAR)"
        selected = node.selected or tuple((column.name, f"`{column.name}`") for column in node.columns)
        types = {column.name: DUCK_TYPE[column.type] for column in node.columns}
        found = [
            (name, f"TRY_CAST(({duck_sql(expression, columns, node.node)}) AS {types[name]})")
            for name, expression in selected
        ]
        values = ", ".join(
            f'{value} AS "{name}"'
            if name in node.identifying_columns
            else f'CASE WHEN NOT {DELETED} THEN {value} END AS "{name}"'
            for name, value in found
        )
        kept = []
        if node.condition is not None:
            kept.append(f"({duck_sql(node.condition, columns, node.node)})")
        if node.key is not None and not node.keeps_null_keys:
            kept.append(f"({key}) IS NOT NULL")
        where = f" WHERE {' AND '.join(kept)}" if kept else ""
        # Rows arrive and leave in the order of __seq. Sorting could mix those of equal __seq.
        self._sql = f"SELECT {key} AS {KEY}, {TIMESTAMP}, {SEQUENCE}, {DELETED}, {values} FROM rows{where}"
        self._schema = rows_schema(node.columns)
        # Opening a database takes as long as a small batch.
        self._memory_bytes = memory_bytes
        self._session = duckdb.connect(
            ":memory:",
            # Without a folder, nothing is written into the current directory of the process.
            config={"threads": 1, "memory_limit": f"{memory_bytes // 1024}KiB", "temp_directory": ""},
        )

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        rows = in_sequence(inputs[0])
        if not rows.num_rows:
            return Emitted(no_rows(self._node.columns))
        return Emitted(self._computed(rows).cast(self._schema))

    def _computed(self, rows: pa.Table) -> pa.Table:
        """Compute the rows; if all at once need too much memory, split them in halves, because each row is independent.

        Raises `BufferFull` if a single row needs too much.
        """
        self._session.register("rows", rows)
        try:
            found: pa.Table = self._session.sql(self._sql).to_arrow_table()
            return found
        except duckdb.OutOfMemoryException as error:
            if rows.num_rows == 1:
                raise BufferFull(
                    f"{self._node.node}: one row needs more than the {self._memory_bytes} bytes of memory that its SQL may "
                    "use: raise TIDEMARK_SQL_MEMORY_BYTES, or filter out such rows before the node"
                ) from error
        finally:
            self._session.unregister("rows")
        half = rows.num_rows // 2
        return pa.concat_tables([self._computed(rows.slice(0, half)), self._computed(rows.slice(half))])
