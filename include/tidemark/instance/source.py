"""The interface through which an instance gets its batches, computed ahead of the task loop. Spark implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tidemark.clock import NOT_MEASURED, Period
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TopicPartition
from tidemark.restore.table_reader import NoTableReader
from tidemark.tasks.update import DeadLetter
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class SourceBatch:
    """One batch of one sub-topology. `ends` are next offsets by source partition; `pipelines` has a table for each of them.

    `read` is the time in which it was read and computed.
    """

    subtopology: int
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    pipelines: Sequence[pa.Table]
    dead_letters: Sequence[DeadLetter]
    read: Period = NOT_MEASURED


class BatchSource(Protocol):
    """A source of batches that starts at explicit offsets and stops at a rebalance, which discards batches not taken.

    While more is unread than a batch holds, the sources of a task advance together by event time (see invariant: sources
    advance together, and `slices`).
    """

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        """Begin at these offsets; only these partitions are read. Reads `size` before each batch."""

    def next(self, timeout_s: float) -> SourceBatch | None:
        """Return the next batch, or None. Raises `OutcomeUnknown` if the source failed, `BatchTooLarge` if a batch did."""

    def stop(self) -> None:
        """Stop reading and discard batches that were not taken. May be called when nothing runs.

        Raises `OutcomeUnknown` if the reader cannot be stopped.
        """

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Implement `TableReader`: an instance restores tables whose source topic is their changelog with its own source."""


class NoSource(NoTableReader):
    """The source of an instance that does not run yet."""

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        raise RuntimeError("an instance reads only while it runs")

    def next(self, timeout_s: float) -> SourceBatch | None:
        return None

    def stop(self) -> None:
        return


@dataclass
class AttachedSource:
    """The source that an instance runs with, and a `TableReader` for the restores of that instance."""

    source: BatchSource = field(default_factory=NoSource)

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Implement `TableReader` with the source that the instance reads from."""
        return self.source.read_table(spec, partition, start, end, should_continue)
