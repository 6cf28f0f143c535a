"""Rows to records of a topic."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import bytes_list
from tidemark.tasks.render import json_records
from tidemark.tasks.rows import DELETED, KEY, TIMESTAMP, Rows
from tidemark.topology.plan import EVENT_TIME, RowSink


def records_of(node: RowSink, rows: Rows) -> list[tuple[bytes, bytes | None]]:
    """Key and value of each record, in the rows' order; a deleted row's value is None, a tombstone."""
    if not rows.num_rows:
        return []
    columns = [(column.name, rows.column(column.name).combine_chunks()) for column in node.columns]
    if node.sink.is_repartition:
        columns.append((EVENT_TIME, rows.column(TIMESTAMP).combine_chunks()))
    keys = bytes_list(rows.column(KEY))
    values: list[bytes] = bytes_list(json_records(columns))
    if not pc.any(rows.column(DELETED)).as_py():
        return list(zip(keys, values, strict=True))
    deleted = rows.column(DELETED).to_pylist()
    return [(key, None if gone else value) for key, value, gone in zip(keys, values, deleted, strict=True)]


def entering_rows(table: pa.Table, names: list[str], schema: pa.Schema) -> Rows:
    """What Spark hands over of a road that goes on in the task loop, as rows; `__seq` is the offset for now."""
    arrays = [table.column("k"), table.column("max_ts"), table.column("record_offset"), table.column("deleted")]
    arrays += [table.column(f"v.{name}") for name in names]
    return pa.table(arrays, schema=schema) if table.num_rows else schema.empty_table()
