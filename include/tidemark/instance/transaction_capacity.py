"""The size of batches, and their split into transactions that fit into the broker's timeout.

See invariant: bounded open transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate

_SAFETY = 3.0
_FIRST_GUESS_PER_SECOND = 200_000.0
_LEAST_TELLING_RECORDS = 1000
_AT_ONCE = 4.0
"""One commit lowers the rate at most to a quarter: a broker that paused once is not a slow broker."""
_LEAST_RECORDS = 1000


class BatchSize:
    """The number of source records that a batch may hold: smaller after a batch was too large, and growing again later.

    The threads that compute batches read it before each batch; only the task loop changes it.
    """

    def __init__(self, most_records: int, known: int | None = None) -> None:
        """Start from `known`, the size that the previous process had reached, if there was one."""
        self._most = most_records
        self.records = min(most_records, max(self._least, known or most_records))

    @property
    def _least(self) -> int:
        return min(_LEAST_RECORDS, self._most)

    @property
    def is_least(self) -> bool:
        """Return whether batches cannot be made smaller."""
        return self.records <= self._least

    def can_shrink(self, held: int) -> bool:
        """Return whether a batch of `held` offsets can be made smaller.

        If not, its records come of little input, for example of many windows that close at once, and smaller batches have as
        many.
        """
        return not self.is_least and held > self._least

    def shrink(self, load: float = 2.0) -> None:
        """Reduce the size after a batch that was `load` times too large."""
        self.records = max(self._least, min(self.records // 2, int(self.records / load)))

    def grow(self, held: int, load: float) -> bool:
        """Double the size after a batch of `held` offsets that used the share `load` of a limit; return whether it did.

        Does nothing if twice the load would not fit, or if the batch was less than half full, which is no evidence.
        """
        if held < self.records / 2 or 2 * load > 1 or self.records >= self._most:
            return False
        self.records = min(self._most, 2 * self.records)
        return True


class TransactionCapacity:
    """The number of records that one transaction may hold, from the rate of recent commits."""

    def __init__(self, transaction_timeout_ms: int) -> None:
        self._timeout_s = transaction_timeout_ms / 1000
        self._records_per_second = _FIRST_GUESS_PER_SECOND

    @property
    def records(self) -> int:
        """Return the number of records that take a third of the timeout at the known rate."""
        return int(self._records_per_second * self._timeout_s / _SAFETY)

    def observe(self, records: int, seconds: float) -> None:
        """Update the rate with a commit; `seconds` must not include failed attempts.

        A small commit takes the time of its round trips: if it is slow, it is no evidence; if it is fast, it is.
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
    """Group tasks, in order, into transactions that fit. A task is never split, as its offsets advance in one step."""
    parts: list[list[tuple[Task, TaskUpdate]]] = []
    filled = 0
    for task, update in batch:
        if not parts or filled + update.records > capacity_records:
            parts.append([])
            filled = 0
        parts[-1].append((task, update))
        filled += update.records
    return parts
