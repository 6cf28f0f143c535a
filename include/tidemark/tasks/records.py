"""Conversion between rows as dictionaries, for users' functions, and Arrow columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.errors import InvalidTopology
from tidemark.tasks.refused_rows import UnusableValue
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, value_schema
from tidemark.topology.plan import Column

HIDDEN = frozenset({KEY, TIMESTAMP, SEQUENCE, DELETED})

_WHOLE = frozenset({int, type(None)})

Row = dict[str, Any]
"""A row's value columns by name."""


def to_dicts(table: pa.Table) -> list[Row]:
    """Return one dictionary per row with its value columns; hidden columns are left out."""
    names = [name for name in table.column_names if name not in HIDDEN]
    if not names:
        return [{} for _ in range(table.num_rows)]
    listed = [table.column(name).to_pylist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*listed, strict=True)]


NumberColumns = Mapping[str, Callable[[Any], Any]]
"""The columns of numbers by name, each with what converts its values to those that a store returns."""


def number_columns(columns: Iterable[Column]) -> NumberColumns:
    """Return the columns that `as_stored` converts."""
    return {column.name: _CONVERTED[column.type] for column in columns if column.type in _CONVERTED}


def _whole(value: Any) -> Any:
    if type(value) is int:
        return value
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    return int(value) if is_number and math.isfinite(value) and value == int(value) else value


def _double(value: Any) -> Any:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def _single(value: Any) -> Any:
    converted = _double(value)
    return c_float(converted).value if type(converted) is float else converted


_CONVERTED = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _whole),
    "FLOAT": _single,
    "DOUBLE": _double,
}


def as_stored(row: Mapping[str, Any], numbers: NumberColumns) -> Row:
    """Return a copy of a row with the numbers that a store returns later.

    Python has only double precision, and JSON writes 1.0 as 1: without this, 0.1 and 1 would be other numbers after a batch.
    A column of whole numbers accepts 1.0 and returns 1. A value that its column cannot hold is left as it is.
    """
    copy = dict(row)
    for name, converted in numbers.items():
        if (value := copy.get(name)) is not None:
            copy[name] = converted(value)
    return copy


def from_dicts(rows: Sequence[Mapping[str, Any] | None], columns: Sequence[Column], where: str) -> pa.Table:
    """Return the value columns of rows that user code returned. A missing field is null, and None is a row of nulls.

    All messages begin with `where`. Raises `InvalidTopology` for a row that is not a dictionary and for a field that is not a
    column, and `UnusableValue` for a value that its column cannot hold.
    """
    schema = value_schema(columns)
    names = set(schema.names)
    for row in rows:
        if row is None:
            continue
        # The second test alone costs ten times as much as the first.
        if type(row) is not dict and not isinstance(row, Mapping):
            raise InvalidTopology(f"{where}: returned {type(row).__name__} {row!r}; return a dictionary of columns")
        if not row.keys() <= names:
            unknown = ", ".join(sorted(map(str, row.keys() - names)))
            raise InvalidTopology(f"{where}: no column {unknown}; the columns are {', '.join(schema.names)}")
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            arrays.append(_held([None if row is None else row.get(name) for row in rows], kind))
        except (ValueError, TypeError, OverflowError) as error:
            raise UnusableValue(f"{where}: column {name} is {kind} and cannot hold a value: {error}") from error
    return pa.table(arrays, schema)


def _held(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the values unchanged as an array. Arrow alone would cut 1.5 to 1 for a column of whole numbers."""
    array = pa.array(values, kind)
    if pa.types.is_integer(kind) and not _WHOLE.issuperset(map(type, values)) and array.to_pylist() != values:
        cut = next(value for value, kept in zip(values, array.to_pylist(), strict=True) if value != kept)
        raise ValueError(f"{cut!r} is not a whole number")
    return array


def rows_of(keys: pa.Array, timestamps: pa.Array, deleted: pa.Array, values: pa.Table) -> Rows:
    """Return rows in the given order, numbered from 0. `values` holds the value columns."""
    hidden = {KEY: keys, TIMESTAMP: timestamps, SEQUENCE: pa.array(np.arange(len(keys))), DELETED: deleted}
    return pa.table({**hidden, **dict(zip(values.column_names, values.columns, strict=True))})
