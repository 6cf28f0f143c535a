"""Which tasks are ours, without a break since when (rule 6). Pure state, changed only by rebalance callbacks."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.names import TopicPartition


class Ownership:
    """Partitions of lead topics that the group gave to this member; each carries the epoch of its assignment.

    Not thread-safe by itself: whoever uses it holds the instance's lock.
    """

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, int] = {}
        self._epoch = 0
        self.changes = 0

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions newly ours, from a new epoch."""
        self._epoch += 1
        self.changes += 1
        for partition in partitions:
            self._epochs[partition] = self._epoch

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions no longer ours, whether given back or lost."""
        self.changes += 1
        for partition in partitions:
            self._epochs.pop(partition, None)

    def epoch(self, partition: TopicPartition) -> int | None:
        """Epoch of a partition of ours, or None."""
        return self._epochs.get(partition)

    def held(self) -> dict[TopicPartition, int]:
        """All of ours, with their epochs."""
        return dict(self._epochs)
