"""Meaning of the bytes in a store: the signature of its values that a checkpoint keeps, and the segment of a key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import SCHEMA_VERSION, WINDOW_START_BYTES, ValueLayout, slots_of
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.topology.plan import StoreKind, StoreSpec, SubTopology

_GENERATION = "generation "
_IS_GENERATION = re.compile(rf"^{_GENERATION}\d+$")


def value_layouts(subtopology: SubTopology) -> Mapping[str, ValueLayout | None]:
    """Return the layout of each store of aggregates by name; None for stores with JSON rows."""
    layouts: dict[str, ValueLayout | None] = {store.name: None for store in subtopology.stores}
    for aggregation in subtopology.aggregations:
        layouts[aggregation.store.name] = ValueLayout(slots_of(aggregation.aggregates))
    return layouts


def value_signature(spec: StoreSpec, layout: ValueLayout | None) -> str:
    """Return the checkpoint's description of a store's values, so that another layout or an earlier generation is noticed."""
    generation = f"{_GENERATION}{spec.generation}/" if spec.generation else ""
    if layout is not None:
        return generation + layout.signature
    return f"{generation}{SCHEMA_VERSION}:json:" + ",".join(f"{column.name} {column.type}" for column in spec.columns)


def generation_of(signature: str) -> int:
    """Return the store's generation for which a `value_signature` was made."""
    generation, found, _ = signature.partition("/")
    return int(generation.removeprefix(_GENERATION)) if found and _IS_GENERATION.match(generation) else 0


def event_times(kind: StoreKind, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the window start of each window key, or the session end of each session key, in epoch milliseconds.

    Raises `TaskCorrupted` if a key is too short to be one.
    """
    if kind is StoreKind.SESSION:
        joined = b"".join([key[-2 * WINDOW_START_BYTES : -WINDOW_START_BYTES] for key in keys])
    else:
        joined = b"".join([key[-WINDOW_START_BYTES:] for key in keys])
    if len(joined) < WINDOW_START_BYTES * len(keys):
        raise TaskCorrupted(
            f"keys are too short to belong to a {kind.value} store, the shortest is 0x{min(keys, key=len).hex()}"
        )
    return np.frombuffer(joined, dtype=">i8").astype(np.int64)


def segments_of(spec: StoreSpec, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the segment of each key of a window or session store."""
    if spec.segment_ms is None:
        return np.zeros(len(keys), dtype=np.int64)
    segments: npt.NDArray[np.int64] = event_times(spec.kind, keys) // spec.segment_ms
    return segments


def first_live_segment(spec: StoreSpec, stream_time_ms: int) -> int | None:
    """Return the first segment that is not entirely past the store's retention; None if nothing ever expires."""
    if spec.retention_ms is None or spec.segment_ms is None or stream_time_ms == NO_STREAM_TIME:
        return None
    return (stream_time_ms - spec.retention_ms) // spec.segment_ms
