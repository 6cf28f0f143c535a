"""What feeds an instance: batches of partial results, computed ahead of the task loop. Spark implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemark.instance.split import BatchSize
from tidemark.names import TopicPartition
from tidemark.restore.changelog import ChangelogBatch
from tidemark.tasks.update import DeadLetter
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class SourceBatch:
    """One batch of one sub-topology. `ends` are next offsets by source partition; a table per branch, see `Task`."""

    subtopology: int
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    branches: Sequence[pa.Table]
    dead_letters: Sequence[DeadLetter]


class BatchSource(Protocol):
    """Started with explicit offsets, stopped at a rebalance; what was not taken by then is thrown away.

    While more is unread than a batch holds, the sources of a task advance together by event time (rule 3); see `slices`.
    """

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        """Begin at these offsets; only these partitions are read. `size` is looked at before each batch."""

    def next(self, timeout_s: float) -> SourceBatch | None:
        """The next batch, or None. Raises `OutcomeUnknown` when the source has failed, `BatchTooLarge` for its size."""

    def stop(self) -> None:
        """Stop reading and forget batches not taken. May be called when nothing runs.

        Raises `OutcomeUnknown` when what reads cannot be stopped.
        """

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, go_on: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """As `TableReader` says: an instance restores tables whose source topic is their changelog by what it reads with."""
