"""Conversion between rows as dictionaries, for users' functions, and Arrow columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


class StoredForm:
    """Converts rows of user code to the rows that a store with these columns returns for them later."""

    def __init__(self, columns: Sequence[Column], where: str) -> None:
        """All messages begin with `where`."""
        self._where = where
        self._columns = [(column, column.name, _CONVERTED[column.type]) for column in columns]

    def of(self, row: Mapping[str, Any]) -> Row:
        """Return a copy of a row with the values that a store returns. Fields that are not columns are left as they are.

        Python has only double precision, and JSON writes 1.0 as 1: without this, 0.1 and 1 would be other numbers after a
        batch. A column of whole numbers accepts 1.0 and returns 1. Raises `UnusableValue` for a value that its column
        cannot hold.
        """
        copy = dict(row)
        for column, name, converted in self._columns:
            if (value := copy.get(name)) is not None:
                if (stored := converted(value)) is None:
                    # Only Arrow knows whether the column holds such a value, and as what.
                    stored = from_dicts([{name: value}], [column], self._where).column(name)[0].as_py()
                copy[name] = stored
        return copy


def single_precision(value: float) -> float:
    """Return the number that a FLOAT column holds."""
    return c_float(value).value


def _whole(bits: int) -> Callable[[Any], int | None]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def converted(value: Any) -> int | None:
        if type(value) is not int:
            is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value == int(value)):
                return None
            value = int(value)
        return value if least <= value <= most else None

    return converted


def _double(value: Any) -> float | None:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def _single(value: Any) -> float | None:
    return None if (converted := _double(value)) is None else single_precision(converted)


def _text(value: Any) -> str | None:
    if type(value) is not str:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair.
        return None
    return value


def _truth(value: Any) -> bool | None:
    return value if type(value) is bool else None


_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "BOOLEAN": _truth,
    "TINYINT": _whole(8),
    "SMALLINT": _whole(16),
    "INT": _whole(32),
    "BIGINT": _whole(64),
    "FLOAT": _single,
    "DOUBLE": _double,
    "STRING": _text,
}
"""By type, the function that returns what a store returns for a value; None if it does not know that."""


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
