"""Records inside the task loop: an Arrow table of hidden columns and value columns, and its bytes in a store.

Hidden columns: `__k` STRING, the key, which may be null; `__ts` BIGINT, the record's timestamp in epoch milliseconds;
`__seq` BIGINT, the place in the batch of the record that is behind the row (rule 20, `tasks.order`); `__deleted` BOOLEAN,
the record has no value, so that it deletes its key, and the value columns are null. Value columns have the names that the
topology gives them.

The results that one record leads to have the same `__seq`, so that a node downstream of an aggregation knows the results of
one record from those of several; their order among each other is that of the rows.

A stored row is its value columns as one JSON object, UTF-8, the columns in order: readable in a changelog, and what a
table's source topic may hold already. In tables `STORED_TIME` stands behind them. The columns' types are in `ROW_TYPES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.json

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import bytes_list
from tidemark.tasks.render import json_records
from tidemark.topology.plan import Column

KEY, TIMESTAMP, SEQUENCE, DELETED = "__k", "__ts", "__seq", "__deleted"
_HIDDEN = ((KEY, pa.string()), (TIMESTAMP, pa.int64()), (SEQUENCE, pa.int64()), (DELETED, pa.bool_()))

ROW_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
}
"""Spark's names of the types that a value column may have in the task loop."""

STORED_TIME = Column(TIMESTAMP, "BIGINT")
"""Last field of a row in a table's store: the timestamp of the row. A source topic that is a changelog has none."""

UNKNOWN_MS = -1
"""Timestamp of a stored row that has none."""

Rows: TypeAlias = pa.Table
"""A table with the schema of `rows_schema`."""


def value_schema(columns: Sequence[Column]) -> pa.Schema:
    """Arrow's schema of the value columns alone."""
    return pa.schema([(column.name, ROW_TYPES[column.type]) for column in columns])


def rows_schema(columns: Sequence[Column]) -> pa.Schema:
    """Hidden columns first, then the value columns in order."""
    return pa.schema([*_HIDDEN, *value_schema(columns)])


def no_rows(columns: Sequence[Column]) -> Rows:
    """An empty table of that schema."""
    return rows_schema(columns).empty_table()


def encode_rows(rows: Rows, columns: Sequence[Column]) -> list[bytes | None]:
    """The stored value of each row, None for one that deletes its key. More columns than `columns` are left out."""
    if not rows.num_rows:
        return []
    values = bytes_list(json_records([(column.name, rows.column(column.name).combine_chunks()) for column in columns]))
    deleted = rows.column(DELETED).to_pylist()
    return [None if gone else value for value, gone in zip(values, deleted, strict=True)]


def decode_rows(values: Sequence[bytes | None], columns: Sequence[Column]) -> pa.Table:
    """Value columns of stored rows, in order; None gives nulls. Raises `TaskCorrupted` on what is not such a row."""
    schema = value_schema(columns)
    if not values:
        return schema.empty_table()
    lines = b"\n".join([b"{}" if value is None else value for value in values])
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, 1 << 10)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise TaskCorrupted(f"a stored row is not JSON of {', '.join(schema.names)}: {error}") from error
    if table.num_rows != len(values):
        raise TaskCorrupted(f"{len(values)} stored rows read as {table.num_rows}: one of them is not one JSON object")
    return table.select(schema.names)
