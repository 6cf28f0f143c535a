"""Merging many stored values into one per group, as sessions and sliding windows need it, whole columns at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemark.stores.layout import Records, ValueLayout
from tidemark.tasks.sketches import merge_group
from tidemark.topology.plan import Fold, Number


def merge_groups(layout: ValueLayout, records: Records, first_rows: npt.NDArray[np.intp]) -> Records:
    """Merge each group to one record. Group i is `records[first_rows[i]:first_rows[i + 1]]`; the last goes to the end.

    No group may be empty. A field is null only if it is null in the whole group. Sums add in the rows' order.
    """
    merged = layout.empty(len(first_rows))
    if not len(first_rows):
        return merged
    merged["valid"] = np.bitwise_or.reduceat(records["valid"], first_rows)
    merged["ts"] = np.maximum.reduceat(records["ts"], first_rows)
    mask_type = records["valid"].dtype.type
    for i, slot in enumerate(layout.slots):
        name, bit = f"f{i}", mask_type(1 << i)
        values = records[name]
        if slot.is_variable:
            merged[name] = _objects([merge_group(slot, rows) for rows in np.split(values, first_rows[1:])])
            continue
        if slot.fold in (Fold.COUNT, Fold.SUM):
            # Missing fields are zero, as in `fold_into`.
            merged[name] = np.add.reduceat(values, first_rows)
            continue
        is_least = slot.fold is Fold.MIN
        present = np.where((records["valid"] & bit) != 0, values, _neutral(slot.number, is_least))
        # NaN is the largest number, as in `fold_into`.
        found = (np.fmin if is_least else np.maximum).reduceat(present, first_rows)
        merged[name] = np.where((merged["valid"] & bit) != 0, found, 0)
    return merged


def _objects(values: list[bytes | None]) -> npt.NDArray[np.object_]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _neutral(number: Number, is_least: bool) -> float | int:
    """Return the neutral element of the merge."""
    if number is Number.DOUBLE:
        return np.nan if is_least else -np.inf
    limits = np.iinfo(np.int64)
    return int(limits.max if is_least else limits.min)
