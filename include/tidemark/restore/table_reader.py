"""Reading a table from the topic that is its own changelog (rule 19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tidemark.names import TopicPartition
from tidemark.restore.changelog import ChangelogBatch
from tidemark.topology.plan import StoreSpec


class TableReader(Protocol):
    """Gives a source topic's records as the store of its table keeps them.

    Only the statement by which the stream itself parses and judges a record can say what the live store holds: a record
    that went to the dead letters must not come back, and values must have the columns' types. Spark runs that statement.
    """

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, go_on: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Keys and stored values of [start, end), None for a deletion, in the order of the offsets.

        Blocks. Raises `OutcomeUnknown` where the topic cannot be read; ends early when `go_on` says no.
        """


class NoTableReader:
    """Stands where no Spark runs. Plans leave such stores to the instance that opens them, so it is never asked."""

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, go_on: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        raise RuntimeError(f"store {spec.name} is read from {partition} by an instance of its application alone")
