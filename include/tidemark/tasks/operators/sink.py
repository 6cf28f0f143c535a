"""Conversion of rows to records of a topic, and of Spark's columns to rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.kafka.messages import Message
from tidemark.stores.layout import bytes_list
from tidemark.tasks.operators.columns import big_endian, numbers
from tidemark.tasks.operators.results import WINDOW_END, WINDOW_START
from tidemark.tasks.partials import Partial, value_column
from tidemark.tasks.render import json_records
from tidemark.tasks.rows import DELETED, KEY, TIMESTAMP, Rows
from tidemark.topology.plan import RowSink, Sink, WindowedKey


def records_of(node: RowSink, rows: Rows) -> list[Message]:
    """Return the rows as records, in their order. The value of a deleted row is None, a tombstone."""
    if not rows.num_rows:
        return []
    columns = [(column.name, rows.column(column.name).combine_chunks()) for column in node.columns]
    values = json_records(columns)
    deleted = rows.column(DELETED).combine_chunks()
    if deleted.true_count:
        values = pc.if_else(deleted, None, values)
    listed = zip(_keys(node.sink, rows), bytes_list(values), rows.column(TIMESTAMP).to_numpy().tolist(), strict=True)
    return [{"key": key, "value": value, "timestamp": at} for key, value, at in listed]


def plain_keys(sink: Sink, keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return the records' keys without their windows; these choose the partition."""
    return keys if sink.windowed_key is None else [key[: -sink.windowed_key.value] for key in keys]


def _keys(sink: Sink, rows: Rows) -> list[bytes]:
    if sink.windowed_key is None:
        return bytes_list(rows.column(KEY))
    names = [WINDOW_END, WINDOW_START] if sink.windowed_key is WindowedKey.SESSION else [WINDOW_START]
    if any(rows.column(name).null_count for name in names):
        raise ValueError(f"{sink.node}: a row, deleted or not, must contain its {' and '.join(names)}")
    window = [big_endian(numbers(rows, name)) for name in names]
    return bytes_list(pc.binary_join_element_wise(rows.column(KEY).combine_chunks().cast(pa.binary()), *window, b""))


def entering_rows(table: pa.Table, names: list[str], schema: pa.Schema) -> Rows:
    """Convert what Spark hands over on a path that continues in the task loop to rows; `__seq` is the offset for now."""
    columns = [Partial.KEY, Partial.MAX_TS, Partial.RECORD_OFFSET, Partial.DELETED, *map(value_column, names)]
    arrays = [table.column(name) for name in columns]
    return pa.table(arrays, schema=schema) if table.num_rows else schema.empty_table()
