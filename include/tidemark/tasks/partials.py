"""The schema of what Spark's statements hand to the tasks: one table per pipeline and batch, of partial results or of records.

Both have the columns `PARTITION` to `KEY` of `Partial`. A partial result also has `LAST_OFFSET`; `WINDOW` in windowed
aggregations; `NEWEST` if the results are merged with records of other sources (`RecordPaths.are_merged`); and one column per
slot of `slots_of(aggregates)`: BIGINT, DOUBLE, BINARY sketches, or an array.

A pipeline without aggregation has, per record, `RECORD_OFFSET`. For its sinks it has `VALUE` and `HEADERS`. For the task loop
it has `DELETED` and a column `value_column(name)` per value. Only good rows of an aggregation have key and window.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NO_TIME = np.iinfo(np.int64).min


class Partial:
    """The names of the columns. No column and no aggregate of a topology may have a name that begins with `__`."""

    PARTITION = "__p"
    """INT, the source partition."""
    STATUS = "__status"
    """INT, a value of `Status`."""
    ROWS = "__rows"
    """BIGINT, the number of records in this row."""
    MAX_TS = "__max_ts"
    """BIGINT, the newest timestamp among them, epoch milliseconds."""
    KEY = "__key"
    """STRING, the key; null for a record without one."""
    WINDOW = "__window"
    """BIGINT, the window start in epoch milliseconds. For session and sliding windows it is the time of the records, because
    the task must judge for each time separately whether they are late."""
    LAST_OFFSET = "__last_offset"
    """BIGINT, the offset of the last record."""
    NEWEST = "__newest"
    """BIGINT, the newest timestamp among all records of its source in the batch up to the last record, epoch milliseconds."""
    RECORD_OFFSET = "__record_offset"
    """BIGINT, the offset of the record."""
    VALUE = "__value"
    """STRING, the record's value as JSON; null if it has none, or if the record is not sent."""
    HEADERS = "__headers"
    """ARRAY<STRUCT<key: STRING, value: BINARY>>, the record's headers; null if there are none."""
    DELETED = "__deleted"
    """BOOLEAN, whether the record has no value."""


class Status:
    """Spark's classification of a record; the values of `Partial.STATUS`."""

    GOOD = 0
    BAD = 1
    FILTERED = 2
    NO_KEY = 3
    """Good, but without the key that some node of the pipeline needs; nodes that need no key process it."""
    UNREAD = 4
    """Not in the usual form, so another statement reads it; a task never gets such a row."""


PARTIAL_TYPES = {
    Partial.PARTITION: pa.int32(),
    Partial.STATUS: pa.int32(),
    Partial.ROWS: pa.int64(),
    Partial.MAX_TS: pa.int64(),
    Partial.KEY: pa.string(),
    Partial.WINDOW: pa.int64(),
    Partial.LAST_OFFSET: pa.int64(),
    Partial.NEWEST: pa.int64(),
    Partial.RECORD_OFFSET: pa.int64(),
    Partial.VALUE: pa.string(),
    Partial.HEADERS: pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    Partial.DELETED: pa.bool_(),
}
"""The Arrow types of the columns as Spark returns them."""


def value_column(name: str) -> str:
    """Return the name of the column that carries a value of a record into the task loop."""
    return f"v.{name}"


def with_newest(partials: pa.Table, times: pa.Table) -> pa.Table:
    """Add `NEWEST` to partial results of one source. It is null where `MAX_TS` is.

    `times` has the columns `PARTITION`, `RECORD_OFFSET` and `MAX_TS` of each good record of the source in the batch.
    """
    partitions, last_offsets = (partials.column(name).to_numpy() for name in (Partial.PARTITION, Partial.LAST_OFFSET))
    newest_ms = pc.fill_null(partials.column(Partial.MAX_TS), _NO_TIME).to_numpy().copy()
    ordered = times.sort_by([(Partial.PARTITION, "ascending"), (Partial.RECORD_OFFSET, "ascending")])
    known, offsets, times_ms = (
        ordered.column(name).to_numpy() for name in (Partial.PARTITION, Partial.RECORD_OFFSET, Partial.MAX_TS)
    )
    for partition in np.unique(known):
        of_partition = known == partition
        reached_ms = np.maximum.accumulate(times_ms[of_partition])
        rows = np.flatnonzero(partitions == partition)
        counts = np.searchsorted(offsets[of_partition], last_offsets[rows], side="right")
        rows, counts = rows[counts > 0], counts[counts > 0]
        newest_ms[rows] = np.maximum(newest_ms[rows], reached_ms[counts - 1])
    mask = pc.is_null(partials.column(Partial.MAX_TS)).to_numpy()
    return partials.append_column(Partial.NEWEST, pa.array(newest_ms, mask=mask))


def rows_of_partition(table: pa.Table, partition: int) -> pa.Table:
    """Return the rows of one source partition, which are those of one task."""
    return table.filter(pc.equal(table.column(Partial.PARTITION), partition))
