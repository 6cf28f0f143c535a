"""The rows that an aggregation emits, whatever its windows are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import Records, ValueLayout
from tidemark.tasks.fold import result_columns
from tidemark.tasks.rows import DELETED, KEY, SEQUENCE, TIMESTAMP, Rows, rows_schema
from tidemark.topology.plan import Aggregation

Times = npt.NDArray[np.int64]
"""Epoch milliseconds, one per row."""

WINDOW_START, WINDOW_END = "window_start", "window_end"


@dataclass(frozen=True)
class Results:
    """Results of one batch in the order of emission. All columns have the same length.

    `starts` and `ends` are None without windows. Where `deleted` is true (None: nowhere), the window is gone and its
    `records` are ignored. `offsets` are those of the records that produced the results, ascending.
    """

    keys: pa.Array
    timestamps: Times
    starts: Times | None
    ends: Times | None
    records: Records
    offsets: Times
    deleted: npt.NDArray[np.bool_] | None = None


def result_rows(aggregation: Aggregation, layout: ValueLayout, results: Results) -> Rows:
    """Return rows with `aggregation.columns`, in the order of `results`; their `__seq` are the records' offsets for now.

    A deleted row keeps its key and its window, which identify what is deleted; its aggregates are null.
    """
    count = len(results.keys)
    named: dict[str, pa.Array] = {aggregation.key_name: results.keys}
    if results.starts is not None and results.ends is not None:
        named |= {WINDOW_START: pa.array(results.starts), WINDOW_END: pa.array(results.ends)}
    gone = None if results.deleted is None else pa.array(results.deleted)
    for name, column in result_columns(layout, aggregation.aggregates, results.records):
        named[name] = column if gone is None else pc.if_else(gone, None, column)
    named |= {
        KEY: results.keys,
        TIMESTAMP: pa.array(results.timestamps),
        SEQUENCE: pa.array(results.offsets),
        DELETED: gone if gone is not None else pa.array(np.zeros(count, dtype=np.bool_)),
    }
    schema = rows_schema(aggregation.columns)
    return pa.table([named[name].cast(kind) for name, kind in zip(schema.names, schema.types, strict=True)], schema)
