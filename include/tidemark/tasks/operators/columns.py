"""Helpers for columns of rows: their order, keys as numbers, and tables assembled from parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, rows_schema, value_schema
from tidemark.topology.plan import Column

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TIME_BYTES = 8


def numbers(rows: pa.Table, name: str) -> Numbers:
    """Return a BIGINT column without nulls."""
    column: Numbers = rows.column(name).to_numpy()
    return column


def flags(rows: pa.Table, name: str) -> Flags:
    """Return a BOOLEAN column without nulls."""
    column: Flags = rows.column(name).to_numpy()
    return column


def with_sequence(rows: Rows, sequence: Numbers) -> Rows:
    """Replace `__seq`; the order of the rows does not change."""
    return rows.set_column(rows.schema.get_field_index(SEQUENCE), SEQUENCE, pa.array(sequence, pa.int64()))


def in_sequence(rows: Rows) -> Rows:
    """Sort the rows by `__seq`; rows of equal `__seq` keep their order."""
    sequence = numbers(rows, SEQUENCE)
    if (np.diff(sequence) >= 0).all():
        return rows
    return rows.take(pa.array(np.argsort(sequence, kind="stable")))


def last_sequence(inputs: Sequence[Rows]) -> int | None:
    """Return the newest `__seq` of a batch; None if it has no rows."""
    return max((int(numbers(rows, SEQUENCE).max()) for rows in inputs if rows.num_rows), default=None)


def big_endian(values: Numbers, width: int = TIME_BYTES) -> pa.Array:
    """Encode numbers, which must not be negative, as `width` bytes (8 or 4), BINARY, whose order is that of the numbers."""
    data = pa.py_buffer(values.astype(f">i{width}").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, data]).cast(pa.binary())


def key_codes(*columns: pa.ChunkedArray) -> list[Numbers]:
    """Return keys as small numbers, equal for equal keys, over all columns (STRING, without nulls)."""
    chunks = [chunk for column in columns for chunk in column.chunks]
    joined = pa.chunked_array(chunks, pa.string()).combine_chunks()
    codes: Numbers = joined.dictionary_encode().indices.to_numpy().astype(np.int64)
    return np.split(codes, np.cumsum([len(column) for column in columns])[:-1])


@dataclass(frozen=True)
class Spans:
    """For each asked (code, low, high), `order[first:last]` are the held rows of that code in [low, high], by value."""

    order: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]

    def newest(self) -> npt.NDArray[np.intp]:
        """Return the number of the last held row for each asked one, -1 if there is none."""
        if not len(self.order):
            return np.full(len(self.first), -1, dtype=np.intp)
        return np.where(self.last > self.first, self.order[np.maximum(self.last, 1) - 1], -1)

    def pairs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return (asked, held) row numbers of every match, by asked row, then by value, then in the order held."""
        counts = self.last - self.first
        asked = np.repeat(np.arange(len(counts)), counts)
        offsets = np.arange(len(asked)) - np.repeat(np.cumsum(counts) - counts, counts)
        return asked, self.order[np.repeat(self.first, counts) + offsets]


def spans(codes: Numbers, low: Numbers, high: Numbers, held_codes: Numbers, held: Numbers) -> Spans:
    """Find the held values between `low` and `high`, both included, among those of the same code."""
    order = np.lexsort((held, held_codes))
    # Ranks instead of values: a code and a rank together fit into 64 bits, whatever the values are.
    distinct = np.unique(held)
    width = len(distinct) + 1
    composite = held_codes[order] * width + np.searchsorted(distinct, held[order])
    first = np.searchsorted(composite, codes * width + np.searchsorted(distinct, low, "left"))
    last = np.searchsorted(composite, codes * width + np.searchsorted(distinct, high, "right"))
    return Spans(order, first, np.maximum(first, last))


def make_rows(
    columns: Sequence[Column],
    *,
    keys: pa.Array | pa.ChunkedArray,
    timestamps: Numbers,
    sequence: Numbers,
    deleted: Flags | None,
    values: Mapping[str, pa.Array | pa.ChunkedArray],
) -> Rows:
    """Return rows with `columns`; all parts have one length. `values` are cast. If `deleted` is None, no row is deleted."""
    gone = np.zeros(len(timestamps), dtype=np.bool_) if deleted is None else deleted
    named = {
        **values,
        KEY: keys,
        TIMESTAMP: pa.array(timestamps),
        SEQUENCE: pa.array(sequence),
        DELETED: pa.array(gone),
    }
    schema = rows_schema(columns)
    arrays = [named[name].cast(kind) for name, kind in zip(schema.names, schema.types, strict=True)]
    return pa.table(arrays, schema)


def joined_values(columns: Sequence[Column], left: pa.Table, right: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the value columns of joined rows; as in Spark, the case of names does not matter.

    A column that both sides have takes the left value or, if that is null, the right one.
    """
    sides = [(side, {name.casefold(): name for name in side.column_names}) for side in (left, right)]
    joined: dict[str, pa.ChunkedArray] = {}
    for column, field in zip(columns, value_schema(columns), strict=True):
        name = column.name.casefold()
        found = [side.column(names[name]).cast(field.type) for side, names in sides if name in names]
        joined[column.name] = found[0] if len(found) == 1 else pc.coalesce(*found)
    return joined
