"""The batch that one transaction commits, and the interface of listeners that follow the commits of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark.clock import NOT_MEASURED, Period
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted, TidemarkError
from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate


@dataclass(frozen=True)
class PreparedBatch:
    """The updates that one transaction commits. `read` is the time in which the source read their records."""

    kind: CommitKind
    updates: Sequence[tuple[Task, TaskUpdate]]
    read: Period = NOT_MEASURED

    @property
    def source_records(self) -> int:
        """The number of source records that were processed, filtered and bad ones included."""
        return sum(update.rows + update.filtered_rows + update.bad_rows for _, update in self.updates)


class CommitListener(Protocol):
    """Called from the task loop; must not block. Every batch ends with one call of `committed` or of `discarded`."""

    def committed(self, batch: PreparedBatch, took: Period) -> None:
        """Called after the stores were written. `took` is the last attempt, from before step 1 until after step 7."""

    def aborted(self, took: Period, aborted: BatchAborted) -> None:
        """Called after an attempt that failed; the same batch may be tried again."""

    def discarded(self, batch: PreparedBatch, error: TidemarkError) -> None:
        """Called when the batch is not tried again: its tasks were revoked, or the instance ends."""
