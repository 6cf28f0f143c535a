"""Splitting a batch into transactions that surely fit into the broker's time-out (rule 9)."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate

_SAFETY = 3.0
_FIRST_GUESS_PER_SECOND = 200_000.0


class TransactionCapacity:
    """How many records one transaction may hold, from the slowest rate seen lately."""

    def __init__(self, transaction_timeout_ms: int) -> None:
        self._timeout_s = transaction_timeout_ms / 1000
        self._records_per_second = _FIRST_GUESS_PER_SECOND

    @property
    def records(self) -> int:
        """At the known rate these take a third of the time-out."""
        return int(self._records_per_second * self._timeout_s / _SAFETY)

    def observe(self, records: int, seconds: float) -> None:
        """Learn from a commit; small ones say nothing about the rate."""
        if records >= 1000 and seconds > 0:
            rate = records / seconds
            self._records_per_second = min(rate, 0.7 * self._records_per_second + 0.3 * rate)


def split_by_capacity(
    batch: Sequence[tuple[Task, TaskUpdate]], capacity_records: int
) -> list[list[tuple[Task, TaskUpdate]]]:
    """Tasks in order, as many per transaction as fit; a task is never split, as its offsets move in one step."""
    parts: list[list[tuple[Task, TaskUpdate]]] = []
    filled = 0
    for task, update in batch:
        if not parts or filled + update.records > capacity_records:
            parts.append([])
            filled = 0
        parts[-1].append((task, update))
        filled += update.records
    return parts
