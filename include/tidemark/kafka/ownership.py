"""The tasks that this instance owns, and since when without a break. Pure state, changed only by rebalance callbacks.

See invariant: ownership at commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.names import TopicPartition


class Ownership:
    """Partitions of lead topics that the group gave to this member; each has the epoch of its assignment.

    Not thread-safe by itself: callers hold the instance's lock.
    """

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, int] = {}
        self._epoch = 0
        self.changes = 0

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that this member owns from now on, with a new epoch."""
        self._epoch += 1
        self.changes += 1
        for partition in partitions:
            self._epochs[partition] = self._epoch

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that this member no longer owns, whether revoked or lost."""
        self.changes += 1
        for partition in partitions:
            self._epochs.pop(partition, None)

    def epoch(self, partition: TopicPartition) -> int | None:
        """Return the epoch of an owned partition, or None if it is not owned."""
        return self._epochs.get(partition)

    def held(self) -> dict[TopicPartition, int]:
        """Return all owned partitions with their epochs."""
        return dict(self._epochs)
