"""Conversion of stored values to another form: aggregates by their slots, rows by their columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.errors import TaskCorrupted
from tidemark.registry.compatibility import StoreChange
from tidemark.registry.description import StoreState
from tidemark.stores.layout import ValueLayout, slots_of


@dataclass(frozen=True)
class AggregateValues:
    """Converts aggregates, matching fields by name. New fields get the value in `filled`, or null."""

    before: ValueLayout
    after: ValueLayout
    filled: Mapping[str, Any]

    def __call__(self, values: Sequence[bytes]) -> list[bytes]:
        """Return as many values, in order. Raises `TaskCorrupted`."""
        old, new = self.before.decode(values), self.after.empty(len(values))
        places = {slot.column: i for i, slot in enumerate(self.before.slots)}
        new["ts"] = old["ts"]
        mask_type = new["valid"].dtype.type
        for i, slot in enumerate(self.after.slots):
            bit, place = mask_type(1 << i), places.get(slot.column)
            if place is not None:
                has_value = (old["valid"] & old["valid"].dtype.type(1 << place)) != 0
                new[f"f{i}"] = old[f"f{place}"]
                new["valid"] |= np.where(has_value, bit, mask_type(0))
            elif self.filled.get(slot.column) is not None:
                new[f"f{i}"] = self.filled[slot.column]
                new["valid"] |= bit
        return self.after.encode(new)


@dataclass(frozen=True)
class RowValues:
    """Converts rows, which are JSON objects. Marks that a node adds at the end stay at the end."""

    added: Mapping[str, Any]
    dropped: Sequence[str]

    def __call__(self, values: Sequence[bytes]) -> list[bytes]:
        """Return as many values, in order. Raises `TaskCorrupted`."""
        return [self._one(value) for value in values] if self.added or self.dropped else list(values)

    def _one(self, value: bytes) -> bytes:
        try:
            row = json.loads(value) if value else {}
        except ValueError as error:
            raise TaskCorrupted(f"a stored row is not JSON: {value!r}") from error
        if not isinstance(row, dict):
            return value  # An entry of the node itself, which has no columns.
        kept = {name: each for name, each in row.items() if name not in self.dropped}
        return json.dumps({**self.added, **kept}, separators=(",", ":"), ensure_ascii=False).encode()


def converter(before: StoreState, after: StoreState, change: StoreChange) -> AggregateValues | RowValues:
    """Return the converter for the values of a store that is copied."""
    if before.aggregates:
        return AggregateValues(
            ValueLayout(slots_of(before.aggregates)), ValueLayout(slots_of(after.aggregates)), change.added_fields
        )
    return RowValues(change.added_fields, change.dropped_fields)
