"""Rows of the task loop: an Arrow table of hidden columns and value columns, and its encoding in a store.

The hidden columns are `__k` STRING, the key, which may be null; `__ts` BIGINT, the record's timestamp in epoch milliseconds;
`__seq` BIGINT, the position within the batch of the record from which the row comes (see invariant: order in a batch, and
`tasks.order`); `__deleted` BOOLEAN, true if the record has no value, so that it deletes its key and the value columns are null.
The value columns have the names that the topology gives them.

All results of one record have the same `__seq`, so that a node downstream of an aggregation can distinguish several results of
one record from results of several records. Their order among each other is that of the rows.

A stored row is one JSON object, UTF-8, of its value columns in order. It is readable in a changelog, and a table's source topic
may already contain it. In tables it ends with `STORED_TIME`. The types of columns are in `ROW_TYPES`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json

from tidemark.errors import TaskCorrupted
from tidemark.json_numbers import SIGNED, read_number
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
"""Arrow types by Spark's names of the types that a value column may have in the task loop."""

STORED_TIME = Column(TIMESTAMP, "BIGINT")
"""Last field of a row in a table's store: the timestamp of the row. A source topic used as changelog does not have it."""

UNKNOWN_MS = -1
"""Timestamp of a stored row without a timestamp."""

Rows: TypeAlias = pa.Table
"""A table with the schema of `rows_schema`."""


def value_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of the value columns only."""
    return pa.schema([(column.name, ROW_TYPES[column.type]) for column in columns])


def rows_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of the hidden columns followed by the value columns in order."""
    return pa.schema([*_HIDDEN, *value_schema(columns)])


def no_rows(columns: Sequence[Column]) -> Rows:
    """Return an empty table with the schema of `rows_schema`."""
    return rows_schema(columns).empty_table()


def encode_rows(rows: Rows, columns: Sequence[Column]) -> list[bytes | None]:
    """Return the stored value of each row, None for one that deletes its key. Columns not in `columns` are left out."""
    if not rows.num_rows:
        return []
    values = bytes_list(json_records([(column.name, rows.column(column.name).combine_chunks()) for column in columns]))
    deleted = rows.column(DELETED).to_pylist()
    return [None if gone else value for value, gone in zip(values, deleted, strict=True)]


def decode_rows(values: Sequence[bytes | None], columns: Sequence[Column]) -> pa.Table:
    """Return the value columns of stored rows, in order; None becomes nulls. Raises `TaskCorrupted` on an invalid row."""
    schema = value_schema(columns)
    if not values:
        return schema.empty_table()
    given = [b"{}" if value is None else value for value in values]
    try:
        try:
            table = _read(given, schema)
        except pa.ArrowInvalid:
            # Arrow does not read numbers that are written as strings, nor those beyond the range of a DOUBLE.
            table = _read_each_number(given, schema)
    except (ValueError, OverflowError) as error:
        raise TaskCorrupted(f"a stored row is not JSON of {', '.join(schema.names)}: {error}") from error
    if table.num_rows != len(values):
        raise TaskCorrupted(
            f"{len(values)} stored rows read as {table.num_rows}: one of them is not a single JSON object"
        )
    return table.select(schema.names)


def with_numbers(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """Return a stored row that was parsed as JSON, also with the numbers that it holds as strings. Raises `ValueError`."""
    floats = [c.name for c in columns if pa.types.is_floating(ROW_TYPES[c.type]) and c.name in row]
    return {**row, **{name: read_number(row[name]) for name in floats}}


def _read(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(lines)
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1 << 10)),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _read_each_number(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Read the floating-point numbers one by one, and all else as `_read` does. Raises `ValueError` on an invalid row."""
    rows = [SIGNED.decode(line.decode()) for line in lines]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is not a JSON object")
    numbers = {
        field.name: pa.array([read_number(row.pop(field.name, None)) for row in rows], field.type)
        for field in schema
        if pa.types.is_floating(field.type)
    }
    table = _read([json.dumps(row).encode() for row in rows], schema)
    return pa.table([numbers.get(name, table.column(name)) for name in schema.names], schema)
