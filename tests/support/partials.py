"""The columns that every partial result of an aggregation has, in the order in which the tests build them."""

from tidemark.tasks.partials import Partial

PARTIAL_HEAD = (
    Partial.PARTITION, Partial.STATUS, Partial.ROWS, Partial.MAX_TS, Partial.LAST_OFFSET, Partial.KEY,
)  # fmt: skip
