"""Bytes of keys and values, alike in the store and in its changelog.

Value: one schema byte, a validity bit mask, then eight little-endian bytes per field; numpy reads and writes whole
columns of them. Window key: the key's bytes followed by the window's start, eight bytes big-endian, so that a store's
order is key, then time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import TaskCorrupted
from tidemark.topology.plan import Aggregate, Fold, Number

SCHEMA_VERSION = 1
WINDOW_START_BYTES = 8

Records = npt.NDArray[np.void]
"""A numpy structured array with one row per key, of `ValueLayout.dtype`."""


@dataclass(frozen=True)
class Slot:
    """One stored field: `column` is its name in the partial results, `fold` how two of them merge."""

    column: str
    fold: Fold
    number: Number


def slots_of(aggregates: Sequence[Aggregate]) -> tuple[Slot, ...]:
    """The stored fields of aggregates, in order; a mean is kept as its sum and its count."""
    slots: list[Slot] = []
    for aggregate in aggregates:
        if aggregate.fold is Fold.MEAN:
            slots.append(Slot(f"{aggregate.name}.sum", Fold.SUM, Number.DOUBLE))
            slots.append(Slot(f"{aggregate.name}.count", Fold.COUNT, Number.LONG))
        else:
            slots.append(Slot(aggregate.name, aggregate.fold, aggregate.number))
    return tuple(slots)


def _mask_type(slots: int) -> str:
    for limit, name in ((8, "u1"), (16, "<u2"), (32, "<u4"), (64, "<u8")):
        if slots <= limit:
            return name
    raise ValueError(f"{slots} fields in one store; 64 is the most")


@dataclass(frozen=True)
class ValueLayout:
    """Fixed-width records of one store. Field `f<i>` belongs to `slots[i]`; bit i of `valid` says it is not null."""

    slots: tuple[Slot, ...]
    dtype: np.dtype[np.void] = field(init=False)

    def __post_init__(self) -> None:
        fields: list[tuple[str, str]] = [("schema", "u1"), ("valid", _mask_type(len(self.slots)))]
        fields += [(f"f{i}", slot.number.value) for i, slot in enumerate(self.slots)]
        object.__setattr__(self, "dtype", np.dtype(fields))

    @property
    def signature(self) -> str:
        """What a marker says of the values, so that a changed layout is noticed: `1:pulses=count<i8`."""
        return f"{SCHEMA_VERSION}:" + ",".join(f"{s.column}={s.fold.value}{s.number.value}" for s in self.slots)

    def empty(self, rows: int) -> Records:
        """`rows` records in which every field is null."""
        records = np.zeros(rows, dtype=self.dtype)
        records["schema"] = SCHEMA_VERSION
        return records

    def encode(self, records: Records) -> list[bytes]:
        """One value per row."""
        values: list[bytes] = np.ascontiguousarray(records).view(f"V{self.dtype.itemsize}").tolist()
        return values

    def decode(self, values: Sequence[bytes | None]) -> Records:
        """One row per value; None reads as nulls. Raises `TaskCorrupted` on a value of another width or schema."""
        absent = self._absent
        joined = b"".join([absent if value is None else value for value in values])
        if len(joined) != len(values) * self.dtype.itemsize:
            raise TaskCorrupted(f"a stored value is not {self.dtype.itemsize} bytes wide, as {self.signature} says")
        records = np.frombuffer(joined, dtype=self.dtype)
        if len(records) and (records["schema"] != SCHEMA_VERSION).any():
            raise TaskCorrupted(f"a stored value is not of schema {SCHEMA_VERSION}")
        return records

    @property
    def _absent(self) -> bytes:
        return self.empty(1).tobytes()


def window_keys(keys: pa.Array, starts: npt.NDArray[np.int64]) -> list[bytes]:
    """Store keys of (key, window) rows: `keys` binary, `starts` epoch milliseconds, both of the same length."""
    big_endian = starts.astype(">i8").tobytes()
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(WINDOW_START_BYTES), len(starts), [None, pa.py_buffer(big_endian)]
    )
    joined = pc.binary_join_element_wise(keys.cast(pa.binary()), fixed.cast(pa.binary()), b"")
    return bytes_list(joined)


def split_window_key(key: bytes) -> tuple[bytes, int]:
    """A window store's key as (key bytes, window start in epoch milliseconds)."""
    return key[:-WINDOW_START_BYTES], int.from_bytes(key[-WINDOW_START_BYTES:], "big", signed=True)


def bytes_list(array: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """A binary or string Arrow array as Python bytes, one each; through numpy, which is the fast road."""
    listed: Any = array.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return list(listed)
