"""Merging partial results into stored values, whole columns at a time.

Partials are Arrow columns named after the layout's slots, and `Partial.MAX_TS`; a null partial changes nothing. LONG sums wrap
around as in Java. NaN is larger than every other number, as in Spark, and of the two zeros only the positive one is kept as a
minimum or maximum: otherwise results would depend on where batches are cut. Variable slots are merged key by key
(`tasks.sketches`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import Records, ValueLayout
from tidemark.tasks.partials import Partial
from tidemark.tasks.sketches import merge_pairs, partial_values, results
from tidemark.topology.plan import Aggregate, Fold, Number


def fold_into(layout: ValueLayout, old: Records, partials: pa.Table) -> Records:
    """Return `old` merged with `partials`, row by row. Both have the same number of rows; `old` is not changed."""
    new: Records = old.copy()
    new["schema"] = layout.schema_version
    new["ts"] = np.maximum(old["ts"], partials.column(Partial.MAX_TS).to_numpy())
    mask_type = new["valid"].dtype.type
    for i, slot in enumerate(layout.slots):
        name, bit = f"f{i}", mask_type(1 << i)
        column = partials.column(slot.column)
        has_new = pc.is_valid(column).to_numpy()
        if slot.is_variable:
            new[name] = merge_pairs(slot, old[name], partial_values(slot, column))
            new["valid"] |= np.where(has_new, bit, mask_type(0))
            continue
        has_old = (old["valid"] & bit) != 0
        zero = 0 if slot.number is Number.LONG else 0.0
        update = pc.fill_null(column, zero).to_numpy().astype(slot.number.value, copy=False)
        both = has_old & has_new
        if slot.fold in (Fold.COUNT, Fold.SUM):
            # Missing fields are zero, so adding is correct whichever of the two is present.
            new[name] = old[name] + update
        else:
            # fmin takes the number if one of the two is NaN, maximum takes the NaN. Adding zero turns -0.0 into 0.0.
            merge = np.fmin if slot.fold is Fold.MIN else np.maximum
            update = update + zero
            new[name] = np.where(both, merge(old[name], update), np.where(has_new, update, old[name]))
        new["valid"] |= np.where(has_new, bit, mask_type(0))
    return new


def result_columns(
    layout: ValueLayout, aggregates: Sequence[Aggregate], records: Records
) -> list[tuple[str, pa.Array]]:
    """Return stored values as readers see them: one nullable Arrow column per aggregate, with means divided."""
    columns: list[tuple[str, pa.Array]] = []
    index = 0
    for aggregate in aggregates:
        valid = (records["valid"] & records["valid"].dtype.type(1 << index)) != 0
        if aggregate.fold is Fold.MEAN:
            count = records[f"f{index + 1}"]
            valid = valid & (count > 0)
            values = np.divide(records[f"f{index}"], count, out=np.zeros(len(records)), where=valid)
            index += 2
        elif layout.slots[index].is_variable:
            columns.append((aggregate.name, results(aggregate, records[f"f{index}"])))
            index += 1
            continue
        else:
            values = np.ascontiguousarray(records[f"f{index}"])
            index += 1
        columns.append((aggregate.name, pa.array(values, mask=~valid)))
    return columns
