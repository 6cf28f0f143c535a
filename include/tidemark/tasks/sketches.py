"""Aggregates with stored values of variable length: distinct counts, quantiles and lists, merged one key at a time.

Their bytes are described in `stores.layout`. Partials come from Spark as BINARY sketches or as arrays of values. Merging is
associative: exactly for lists, within the error of the sketch for the others. A KLL sketch drops values at random, so quantiles
of the same records may differ within its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasketches import HLL_8, hll_sketch, hll_union, kll_doubles_sketch

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import HLL_LG_K, Slot
from tidemark.tasks.render import json_values
from tidemark.topology.plan import Aggregate, Fold

Values = npt.NDArray[np.object_]
"""Bytes or None, one per key."""

_SEPARATOR = b"\n"


def partial_values(slot: Slot, column: pa.ChunkedArray) -> list[bytes | None]:
    """Convert Spark's partial results to their stored form; None if there is none."""
    if slot.fold is not Fold.COLLECT:
        return [_compact(slot, value) for value in column.to_pylist()]
    whole = column.combine_chunks()
    lists = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    values = json_values(lists.flatten()).to_pylist()
    ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy())
    starts = [0, *ends[:-1].tolist()]
    return [
        _SEPARATOR.join([value.encode() for value in values[start:end]]) if present else None
        for start, end, present in zip(starts, ends.tolist(), lists.is_valid().to_pylist(), strict=True)
    ]


def merge_pairs(slot: Slot, old: Iterable[bytes | None], new: Sequence[bytes | None]) -> Values:
    """Merge `old` with `new`, key by key. Raises `TaskCorrupted` on bytes that do not fit the slot."""
    merge = _MERGES[slot.fold]
    merged = np.empty(len(new), dtype=object)
    for i, (before, update) in enumerate(zip(old, new, strict=True)):
        known = [value for value in (before, update) if value is not None]
        merged[i] = _merged(slot, merge, known)
    return merged


def merge_group(slot: Slot, values: Iterable[bytes | None]) -> bytes | None:
    """Merge all values in their order; None if all are None. Raises `TaskCorrupted`."""
    return _merged(slot, _MERGES[slot.fold], [value for value in values if value is not None])


def results(aggregate: Aggregate, values: Iterable[bytes | None]) -> pa.Array:
    """Return the results: BIGINT for a distinct count, DOUBLE for a quantile, a JSON array as STRING for a list.

    Null if there was no value, or none that counts. Raises `TaskCorrupted`.
    """
    kinds = {Fold.DISTINCT: pa.int64(), Fold.QUANTILE: pa.float64(), Fold.COLLECT: pa.string()}
    return pa.array(
        [None if value is None else _result(aggregate, value) for value in values], type=kinds[aggregate.fold]
    )


def _merged(slot: Slot, merge: Callable[[Slot, list[bytes]], bytes], known: list[bytes]) -> bytes | None:
    if not known:
        return None
    # A single list is merged, too: its limit may have become smaller since it was stored.
    if len(known) == 1 and slot.fold is not Fold.COLLECT:
        return known[0]
    try:
        return merge(slot, known)
    except (RuntimeError, ValueError) as error:
        raise TaskCorrupted(f"a stored {slot.signature} cannot be read: {error}") from error


def _union(_slot: Slot, sketches: list[bytes]) -> bytes:
    union = hll_union(HLL_LG_K)
    for sketch in sketches:
        union.update(hll_sketch.deserialize(sketch))
    merged: bytes = union.get_result(HLL_8).serialize_compact()
    return merged


def _merge_quantiles(_slot: Slot, sketches: list[bytes]) -> bytes:
    first, *others = (kll_doubles_sketch.deserialize(sketch) for sketch in sketches)
    for other in others:
        first.merge(other)
    merged: bytes = first.serialize()
    return merged


def _last_values(slot: Slot, lists: list[bytes]) -> bytes:
    values = _SEPARATOR.join([part for part in lists if part]).split(_SEPARATOR)
    return _SEPARATOR.join(values[-(slot.limit or len(values)) :])


_MERGES: dict[Fold, Callable[[Slot, list[bytes]], bytes]] = {
    Fold.DISTINCT: _union,
    Fold.QUANTILE: _merge_quantiles,
    Fold.COLLECT: _last_values,
}


def _compact(slot: Slot, value: bytes | None) -> bytes | None:
    """Compact Spark's HyperLogLog, which reserves room for more values that a store need not keep."""
    if value is None or slot.fold is not Fold.DISTINCT:
        return value
    compact: bytes = hll_sketch.deserialize(value).serialize_compact()
    return compact


def _result(aggregate: Aggregate, value: bytes) -> int | float | str | None:
    try:
        if aggregate.fold is Fold.DISTINCT:
            return round(float(hll_sketch.deserialize(value).get_estimate()))
        if aggregate.fold is Fold.QUANTILE:
            sketch = kll_doubles_sketch.deserialize(value)
            return None if sketch.is_empty() else float(sketch.get_quantile(aggregate.argument, True))
    except (RuntimeError, ValueError) as error:
        raise TaskCorrupted(f"a stored {aggregate.call} cannot be read: {error}") from error
    return f"[{value.replace(_SEPARATOR, b',').decode()}]"
