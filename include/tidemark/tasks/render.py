"""JSON records from Arrow columns, without a loop over rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.json_numbers import INFINITY, MINUS_INFINITY, NAN

_ESCAPES = (("\\", "\\\\"), ('"', '\\"'))
_CONTROL = r"[\x00-\x1f]"


def json_records(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Return one JSON object per row, with fields in the columns' order: numbers, booleans, strings, and null as `null`.

    NaN and infinities are written as in `json_numbers`.
    """
    parts: list[pa.Array | str] = []
    for i, (name, column) in enumerate(columns):
        parts.append(("{" if i == 0 else ",") + json.dumps(name) + ":")
        parts.append(json_values(column))
    parts.append("}")
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar(""))


def json_values(column: pa.Array) -> pa.Array:
    """Return each value as JSON text on one line; null as `null`."""
    if pa.types.is_floating(column.type):
        column = _numbers(column)
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.binary_join_element_wise(pa.scalar('"'), _escaped(column), pa.scalar('"'), pa.scalar(""))
    else:
        column = column.cast(pa.string())
    return pc.fill_null(column, "null")


def _numbers(column: pa.Array) -> pa.Array:
    finite, text = pc.is_finite(column), column.cast(pa.string())
    if pc.all(finite).as_py():
        return text
    infinity = pc.if_else(pc.greater(column, 0), json.dumps(INFINITY), json.dumps(MINUS_INFINITY))
    return pc.if_else(finite, text, pc.if_else(pc.is_nan(column), json.dumps(NAN), infinity))


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in _ESCAPES:
        column = pc.replace_substring(column, plain, escaped)
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
        # Control characters are rare in keys, so the values are visited one by one only if there are any.
        column = pa.array(
            [
                None if v is None else "".join(c if c >= " " else f"\\u{ord(c):04x}" for c in v)
                for v in column.to_pylist()
            ],
            type=pa.string(),
        )
    return column
