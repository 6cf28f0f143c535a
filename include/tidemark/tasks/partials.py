"""The schema of what Spark's statements hand to the tasks: one table per pipeline and batch, of partial results or of records.

Both have the columns `PARTITION` to `KEY` of `Partial`. A partial result also has `LAST_OFFSET`; `WINDOW` in windowed
aggregations; and one column per slot of `slots_of(aggregates)`: BIGINT, DOUBLE, BINARY sketches, or an array.

A pipeline without aggregation has, per record, `RECORD_OFFSET`. For its sinks it has `VALUE` and `HEADERS`. For the task loop
it has `DELETED` and a column `value_column(name)` per value. Only good rows of an aggregation have key and window.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


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
    Partial.RECORD_OFFSET: pa.int64(),
    Partial.VALUE: pa.string(),
    Partial.HEADERS: pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    Partial.DELETED: pa.bool_(),
}
"""The Arrow types of the columns as Spark returns them."""


def value_column(name: str) -> str:
    """Return the name of the column that carries a value of a record into the task loop."""
    return f"v.{name}"


def rows_of_partition(table: pa.Table, partition: int) -> pa.Table:
    """Return the rows of one source partition, which are those of one task."""
    return table.filter(pc.equal(table.column(Partial.PARTITION), partition))
