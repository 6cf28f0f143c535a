"""The form of answers, which processes and clients share: the columns, Arrow streams, and results as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa

KEY, WINDOW_START, WINDOW_END, VALUE = "key", "window_start_ms", "window_end_ms", "value"
"""Columns of every answer. The times exist if the store has windows. The value is a structure: its fields may have any name."""
HEX = "_hex"
"""The ending of names whose values are bytes in hexadecimal."""
ARROW_STREAM = "application/vnd.apache.arrow.stream"
META = b"tidemark"
"""The key of an answer's facts, as JSON, in the metadata of its schema."""


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
    """Return a row of an answer as JSON: a key that is not text in hexadecimal; NaN and infinities are null, as in sinks."""
    left = dict(row)
    entry = json_key(left.pop(KEY))
    entry |= {name: left.pop(name) for name in (WINDOW_START, WINDOW_END) if name in left}
    value = left[VALUE]
    return {**entry, VALUE: None if value is None else {name: _plain(each) for name, each in value.items()}}


def json_key(key: bytes) -> dict[str, str]:
    """Return a key as the field `key` if it is text, else as `key_hex`."""
    try:
        return {KEY: key.decode()}
    except UnicodeDecodeError:
        return {KEY + HEX: key.hex()}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
