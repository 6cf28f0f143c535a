"""Reading of a table from the topic that is its own changelog. See invariant: source topic as changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TopicPartition
from tidemark.topology.plan import StoreSpec


class TableReader(Protocol):
    """Reads a source topic's records in the form in which the store of the table keeps them.

    Only the statement with which the stream itself parses and checks records gives what the live store holds: a record
    that became a dead letter must not come back, and values must have the columns' types. Spark runs that statement.
    """

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Yield keys and stored values of [start, end) in the order of the offsets. A value of None is a deletion.

        Blocks. Raises `OutcomeUnknown` if the topic cannot be read; ends early if `should_continue` returns False.
        """


class NoTableReader:
    """Used where Spark does not run. Plans leave such tables to the instance that opens them, so it is never called."""

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        raise RuntimeError(f"store {spec.name} can be read from {partition} only by an instance of its application")
