"""How large a batch may be, and how it is split into transactions that surely fit into the broker's time-out (rule 9)."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate

_SAFETY = 3.0
_FIRST_GUESS_PER_SECOND = 200_000.0
_LEAST_TELLING_RECORDS = 1000
_AT_ONCE = 4.0
"""One commit lowers the rate to a quarter at the most: a broker that stood still once is no slow broker."""
_LEAST_RECORDS = 1000


class BatchSize:
    """How many source records a batch may hold: what is set, less once a batch was too large, and more again.

    Read by the threads that compute batches, before each; changed by the task loop alone.
    """

    def __init__(self, most_records: int, known: int | None = None) -> None:
        """`known` is what the process before this one had come to."""
        self._most = most_records
        self.records = min(most_records, max(self._least, known or most_records))

    @property
    def _least(self) -> int:
        return min(_LEAST_RECORDS, self._most)

    @property
    def is_least(self) -> bool:
        """Whether batches cannot be made smaller."""
        return self.records <= self._least

    def shrink(self, load: float = 2.0) -> None:
        """After a batch that was `load` times too large."""
        self.records = max(self._least, min(self.records // 2, int(self.records / load)))

    def grow(self, held: int, load: float) -> bool:
        """After a batch of `held` offsets, which filled `load` of what one may: twice as much where that fits; whether so.

        What was not full says nothing of larger ones.
        """
        if held < self.records / 2 or 2 * load > 1 or self.records >= self._most:
            return False
        self.records = min(self._most, 2 * self.records)
        return True


class TransactionCapacity:
    """How many records one transaction may hold, from the rate of the commits seen lately."""

    def __init__(self, transaction_timeout_ms: int) -> None:
        self._timeout_s = transaction_timeout_ms / 1000
        self._records_per_second = _FIRST_GUESS_PER_SECOND

    @property
    def records(self) -> int:
        """At the known rate these take a third of the time-out."""
        return int(self._records_per_second * self._timeout_s / _SAFETY)

    def observe(self, records: int, seconds: float) -> None:
        """Learn from a commit, without what was tried before it.

        A small one takes the time of its round trips: that it is slow says nothing, that it is fast does.
        """
        rate = records / max(seconds, 1e-6)
        known = self._records_per_second
        if rate > known:
            self._records_per_second = 0.7 * known + 0.3 * min(rate, _FIRST_GUESS_PER_SECOND)
        elif records >= _LEAST_TELLING_RECORDS:
            self._records_per_second = max(rate, known / _AT_ONCE)


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
