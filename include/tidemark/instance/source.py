"""What feeds an instance: batches of partial results, computed ahead of the task loop. Spark implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemark.names import TopicPartition
from tidemark.tasks.update import DeadLetter


@dataclass(frozen=True)
class SourceBatch:
    """One batch of one sub-topology. `ends` are next offsets by source partition; a table per branch, see `Task`."""

    subtopology: int
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    branches: Sequence[pa.Table]
    dead_letters: Sequence[DeadLetter]


class BatchSource(Protocol):
    """Started with explicit offsets, stopped at a rebalance; what was not taken by then is thrown away."""

    def start(self, next_offsets: Mapping[TopicPartition, int], max_batch_records: int) -> None:
        """Begin at these offsets; only these partitions are read."""

    def next(self, timeout_s: float) -> SourceBatch | None:
        """The next batch, or None. Raises `OutcomeUnknown` when the source has failed."""

    def stop(self) -> None:
        """Stop reading and forget batches not taken. May be called when nothing runs."""
