"""The interface through which an instance gets its batches, computed ahead of the task loop. Spark implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
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

_LOOK_S = 0.2
"""The time between two looks whether a restore that waits for its source is still wanted."""


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
        """Return the next batch, or None. Raises `OutcomeUnknown` if the source failed, `BatchTooLarge` if a batch did.

        Raises `SparkEnded` if the source cannot compute any batch any more.
        """

    def stop(self) -> None:
        """Stop reading and discard batches that were not taken. May be called when nothing runs.

        Raises `OutcomeUnknown` if the reader cannot be stopped.
        """

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Implement `TableReader`: an instance restores tables whose source topic is their changelog with its own source."""


class ColdSource(BatchSource, Protocol):
    """A source whose first read takes some seconds longer than the others."""

    def warm_up(self) -> None:
        """Prepare for the first read, in another thread, unless it has begun. May be called once."""


class NoSource(NoTableReader):
    """The source of an instance that does not run yet."""

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        raise RuntimeError("an instance reads only while it runs")

    def next(self, timeout_s: float) -> SourceBatch | None:
        return None

    def stop(self) -> None:
        return


class StartingSource:
    """Implements `BatchSource` with one that is still starting, and begins to read when it has started.

    Meanwhile an instance joins its group, restores its stores and answers queries. A source that has started before the stores
    are restored warms up until then. `start`, `next` and `read_table` raise what kept the source from starting.
    """

    def __init__(self, starting: Future[ColdSource]) -> None:
        self._starting = starting
        self._wanted: tuple[Mapping[TopicPartition, int], BatchSize] | None = None
        starting.add_done_callback(self._warm_up)

    def _warm_up(self, started: Future[ColdSource]) -> None:
        # Records that wait are read at once: the first batch is the warm-up then.
        if self._wanted is None and started.exception() is None:
            started.result().warm_up()

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        self._wanted = next_offsets, size
        self._begin()

    def next(self, timeout_s: float) -> SourceBatch | None:
        wait([self._starting], timeout_s)
        if not self._starting.done():
            return None
        self._begin()
        return self._starting.result().next(timeout_s)

    def _begin(self) -> None:
        """Start to read what is wanted, once, if the source can."""
        if self._wanted is not None and self._starting.done():
            (next_offsets, size), self._wanted = self._wanted, None
            self._starting.result().start(next_offsets, size)

    def stop(self) -> None:
        self._wanted = None
        if self._starting.done() and self._starting.exception() is None:
            self._starting.result().stop()

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        while not self._starting.done():
            if not should_continue():
                return
            wait([self._starting], _LOOK_S)
        yield from self._starting.result().read_table(spec, partition, start, end, should_continue)


@dataclass
class AttachedSource:
    """The source that an instance runs with, and a `TableReader` for the restores of that instance."""

    source: BatchSource = field(default_factory=NoSource)

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Implement `TableReader` with the source that the instance reads from."""
        return self.source.read_table(spec, partition, start, end, should_continue)
