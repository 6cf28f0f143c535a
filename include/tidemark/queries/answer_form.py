"""The form of answers, which processes and clients share: the columns, Arrow streams, and results as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemark.json_numbers import json_number

KEY, WINDOW_START, WINDOW_END, VALUE = "key", "window_start_ms", "window_end_ms", "value"
"""Columns of every answer. The times exist if the store has windows. The value is a structure: its fields may have any name."""
_KEY_TYPES = {KEY: pa.binary(), WINDOW_START: pa.int64(), WINDOW_END: pa.int64()}
HEX = "_hex"
"""The ending of names whose values are bytes in hexadecimal."""
ARROW_STREAM = "application/vnd.apache.arrow.stream"
META = b"tidemark"
"""The key of an answer's facts, as JSON, in the metadata of its schema."""

_FEW_ROWS = 32
"""So many rows are made in less time than a table of them."""


@dataclass(frozen=True)
class Results:
    """Results of a store by columns: those of the keys and windows, and the fields of the values. All have the same length.

    The keys are Arrow arrays if they came as such, else lists.
    """

    keys: Mapping[str, pa.Array | pa.ChunkedArray | list[Any]]
    values: Mapping[str, pa.Array]

    @classmethod
    def of(cls, table: pa.Table) -> Results:
        """Return the columns of a `table`."""
        values = one_array(table.column(VALUE))
        fields = dict(zip(values.type.names, values.flatten(), strict=True))
        return cls({name: table.column(name) for name in table.column_names if name != VALUE}, fields)

    def __len__(self) -> int:
        return len(self.keys[KEY])

    @property
    def size_bytes(self) -> int:
        """The bytes of the keys and values in memory, without the times of windows."""
        keys = self.keys[KEY]
        of_keys: int = sum(map(len, keys)) if isinstance(keys, list) else keys.nbytes
        of_values: int = sum(column.nbytes for column in self.values.values())
        return of_keys + of_values

    def table(self) -> pa.Table:
        """Return the results as Arrow answers have them."""
        values = pa.StructArray.from_arrays(list(self.values.values()), list(self.values))
        return self.key_table().append_column(VALUE, values)

    def key_table(self) -> pa.Table:
        """Return the keys and windows as a table."""
        return pa.table(
            {
                name: pa.array(column, _KEY_TYPES[name]) if isinstance(column, list) else column
                for name, column in self.keys.items()
            }
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return what `to_pylist` of the table does."""
        if len(self) > _FEW_ROWS:
            rows: list[dict[str, Any]] = self.table().to_pylist()
            return rows
        fields = [column.to_pylist() for column in self.values.values()]
        values = [dict(zip(self.values, row, strict=True)) for row in zip(*fields, strict=True)]
        keys = [column if isinstance(column, list) else column.to_pylist() for column in self.keys.values()]
        names = [*self.keys, VALUE]
        return [dict(zip(names, row, strict=True)) for row in zip(*keys, values, strict=True)]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the contents of a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def arrow_stream(table: pa.Table, meta: dict[str, Any]) -> bytes:
    """Return a table as an Arrow stream with facts in the metadata of its schema."""
    with_meta = table.replace_schema_metadata({META: json.dumps(meta)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, with_meta.schema) as writer:
        writer.write_table(with_meta)
    return bytes(sink.getvalue())


def read_arrow_stream(data: bytes) -> tuple[pa.Table, dict[str, Any]]:
    """Return what `arrow_stream` was given."""
    table = pa.ipc.open_stream(data).read_all()
    meta: dict[str, Any] = json.loads(table.schema.metadata[META])
    return table.replace_schema_metadata(None), meta


def json_entry(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of an answer as JSON: a key that is not text in hexadecimal; NaN and infinities are strings, as in sinks."""
    entry: dict[str, Any] = json_key(row[KEY])
    for name in (WINDOW_START, WINDOW_END):
        if name in row:
            entry[name] = row[name]
    value = row[VALUE]
    entry[VALUE] = None if value is None else {name: _plain(each) for name, each in value.items()}
    return entry


def json_key(key: bytes) -> dict[str, str]:
    """Return a key as the field `key` if it is text, else as `key_hex`."""
    try:
        return {KEY: key.decode()}
    except UnicodeDecodeError:
        return {KEY + HEX: key.hex()}


def _plain(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value
