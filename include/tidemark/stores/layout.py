"""Bytes of keys and values, which are the same in the store and in its changelog.

A value is one schema byte, a validity bit mask, the newest timestamp of its records (epoch milliseconds, eight bytes
little-endian, -1: none), then eight little-endian bytes per fixed field; numpy reads and writes whole columns of them. In a
store with fields of variable length, the schema byte differs, and the fixed fields are followed, for each variable field in
order, by its length, four bytes little-endian, and its bytes; a null has length 0. These bytes depend on the fold:

    DISTINCT   a HyperLogLog sketch of 2^`HLL_LG_K` registers, compact
    QUANTILE   a KLL sketch of doubles with k = `KLL_K`
    COLLECT    JSON values separated by newlines, oldest first

Both sketches are in the format of Apache DataSketches. A window key is the key's bytes followed by the window's start, eight
bytes big-endian, so that a store is ordered by key, then time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import TaskCorrupted
from tidemark.topology.plan import MOST_STORED_FIELDS, Aggregate, Fold, Number

SCHEMA_VERSION = 3
VARIABLE_SCHEMA_VERSION = 4
NO_TIMESTAMP = -1
HLL_LG_K = 12
"""Relative standard error 1.6 %, at most 4 KiB per key; a few values are kept exactly."""
KLL_K = 400
"""Rank error 0.7 % at 99 % confidence, about 6 KiB per key; up to 400 values the quantile is exact."""
_LENGTH_BYTES = 4
_VARIABLE = {Fold.DISTINCT: f"hll{HLL_LG_K}", Fold.QUANTILE: f"kll{KLL_K}", Fold.COLLECT: "lines"}
WINDOW_START_BYTES = 8

Records = npt.NDArray[np.void]
"""A numpy structured array with one row per key, of `ValueLayout.dtype`. A variable field holds bytes or None."""


@dataclass(frozen=True)
class Slot:
    """One stored field. `column` is its name in the partial results, `fold` the rule by which two values are merged.

    `limit` is the number of values that a collect keeps.
    """

    column: str
    fold: Fold
    number: Number
    limit: int | None = None

    @property
    def is_variable(self) -> bool:
        """True if its bytes have no fixed length."""
        return self.fold in _VARIABLE

    @property
    def signature(self) -> str:
        """For example `pulses=count<i8` or `visitors=distinct:hll12`. A quantile's rank and a limit are not part of it."""
        kept = f":{_VARIABLE[self.fold]}" if self.is_variable else self.number.value
        return f"{self.column}={self.fold.value}{kept}"


def slots_of(aggregates: Sequence[Aggregate]) -> tuple[Slot, ...]:
    """Return the stored fields of aggregates, in order. A mean is stored as its sum and its count."""
    slots: list[Slot] = []
    for aggregate in aggregates:
        if aggregate.fold is Fold.MEAN:
            slots.append(Slot(f"{aggregate.name}.sum", Fold.SUM, Number.DOUBLE))
            slots.append(Slot(f"{aggregate.name}.count", Fold.COUNT, Number.LONG))
        else:
            limit = int(aggregate.argument or 0) if aggregate.fold is Fold.COLLECT else None
            slots.append(Slot(aggregate.name, aggregate.fold, aggregate.number, limit))
    return tuple(slots)


def _mask_type(slots: int) -> str:
    for limit, name in ((8, "u1"), (16, "<u2"), (32, "<u4"), (MOST_STORED_FIELDS, "<u8")):
        if slots <= limit:
            return name
    raise ValueError(f"{slots} fields in one store; {MOST_STORED_FIELDS} is the most")


@dataclass(frozen=True)
class ValueLayout:
    """Layout of one store's values. Field `f<i>` belongs to `slots[i]`; bit i of `valid` is set if it is not null.

    `ts` is the newest timestamp of the records in a value, as Kafka Streams keeps it with each aggregate. `dtype` is the type
    of `Records`, `fixed` the type of the fixed part of a value; the two are equal if no field is variable.
    """

    slots: tuple[Slot, ...]
    dtype: np.dtype[np.void] = field(init=False)
    fixed: np.dtype[np.void] = field(init=False)

    def __post_init__(self) -> None:
        head: list[tuple[str, str]] = [("schema", "u1"), ("valid", _mask_type(len(self.slots))), ("ts", "<i8")]
        fields = [(f"f{i}", "O" if slot.is_variable else slot.number.value) for i, slot in enumerate(self.slots)]
        object.__setattr__(self, "dtype", np.dtype([*head, *fields]))
        object.__setattr__(self, "fixed", np.dtype([*head, *(pair for pair in fields if pair[1] != "O")]))

    @cached_property
    def variable_fields(self) -> tuple[str, ...]:
        """The names of the fields that hold bytes, in order."""
        return tuple(f"f{i}" for i, slot in enumerate(self.slots) if slot.is_variable)

    @property
    def schema_version(self) -> int:
        """The first byte of every value."""
        return VARIABLE_SCHEMA_VERSION if self.variable_fields else SCHEMA_VERSION

    @property
    def value_bytes(self) -> int | None:
        """The width of every value; None if it varies."""
        return None if self.variable_fields else self.fixed.itemsize

    @property
    def signature(self) -> str:
        """A description of the layout, which the checkpoint keeps so that a change is noticed: `3:pulses=count<i8`."""
        return f"{self.schema_version}:" + ",".join(slot.signature for slot in self.slots)

    def empty(self, rows: int) -> Records:
        """Return `rows` records in which every field is null and no timestamp is known."""
        records = np.zeros(rows, dtype=self.dtype)
        records["schema"] = self.schema_version
        records["ts"] = NO_TIMESTAMP
        for name in self.variable_fields:
            records[name] = None
        return records

    def encode(self, records: Records) -> list[bytes]:
        """Return one value per row."""
        variable = self.variable_fields
        if not variable:
            return _row_bytes(records)
        fixed = np.empty(len(records), dtype=self.fixed)
        for name in self.fixed.names or ():
            fixed[name] = records[name]
        columns = [_row_bytes(fixed), *(map(_with_length, records[name].tolist()) for name in variable)]
        return [b"".join(parts) for parts in zip(*columns, strict=True)]

    def decode(self, values: Sequence[bytes | None]) -> Records:
        """Return one row per value; None becomes nulls. Raises `TaskCorrupted` on a value of another width or schema."""
        if self.variable_fields:
            return self._decode_variable(values)
        absent = self._absent
        joined = b"".join([absent if value is None else value for value in values])
        if len(joined) != len(values) * self.dtype.itemsize:
            raise TaskCorrupted(f"a stored value is not {self.dtype.itemsize} bytes wide, as {self.signature} says")
        records = np.frombuffer(joined, dtype=self.dtype)
        if len(records) and (records["schema"] != SCHEMA_VERSION).any():
            raise TaskCorrupted(f"a stored value is not of schema {SCHEMA_VERSION}")
        return records

    def _decode_variable(self, values: Sequence[bytes | None]) -> Records:
        records = self.empty(len(values))
        present = [row for row, value in enumerate(values) if value is not None]
        stored = [value for value in values if value is not None]
        width = self.fixed.itemsize
        heads = b"".join([value[:width] for value in stored])
        if len(heads) != len(stored) * width or any(value[0] != self.schema_version for value in stored):
            raise TaskCorrupted(f"a stored value is not of schema {self.schema_version}, as {self.signature} says")
        fixed = np.frombuffer(heads, dtype=self.fixed)
        for name in self.fixed.names or ():
            records[name][present] = fixed[name]
        ends = [width] * len(stored)
        for name in self.variable_fields:
            has_value = (fixed["valid"] & fixed["valid"].dtype.type(1 << int(name[1:]))) != 0
            for i, (row, value) in enumerate(zip(present, stored, strict=True)):
                start = ends[i] + _LENGTH_BYTES
                ends[i] = start + int.from_bytes(value[start - _LENGTH_BYTES : start], "little")
                if has_value[i]:
                    records[name][row] = value[start : ends[i]]
        if any(end != len(value) for end, value in zip(ends, stored, strict=True)):
            raise TaskCorrupted(f"a stored value is longer or shorter than its fields, as {self.signature} says")
        return records

    @cached_property
    def _absent(self) -> bytes:
        return self.empty(1).tobytes()


def _row_bytes(records: Records) -> list[bytes]:
    values: list[bytes] = np.ascontiguousarray(records).view(f"V{records.dtype.itemsize}").tolist()
    return values


def _with_length(value: bytes | None) -> bytes:
    kept = value or b""
    return len(kept).to_bytes(_LENGTH_BYTES, "little") + kept


def window_keys(keys: pa.Array, starts: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the store keys of (key, window) rows. `keys` is binary, `starts` epoch milliseconds, of the same length."""
    big_endian = starts.astype(">i8").tobytes()
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(WINDOW_START_BYTES), len(starts), [None, pa.py_buffer(big_endian)]
    )
    joined = pc.binary_join_element_wise(keys.cast(pa.binary()), fixed.cast(pa.binary()), b"")
    return bytes_list(joined)


def split_window_key(key: bytes) -> tuple[bytes, int]:
    """Split a window store's key into (key bytes, window start in epoch milliseconds)."""
    return key[:-WINDOW_START_BYTES], int.from_bytes(key[-WINDOW_START_BYTES:], "big", signed=True)


def bytes_list(array: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """Convert a binary or string Arrow array to a list of Python bytes; through numpy, which is the fastest conversion."""
    listed: Any = array.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return list(listed)
