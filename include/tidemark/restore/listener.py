"""Progress events of a restore, named as in Kafka Streams' StateRestoreListener."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from tidemark.names import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestoreProgress:
    """The progress of one store's restore.

    Offsets are of the changelog; the distance between two is not a number of records. `elapsed_s` counts from the
    start.
    """

    store: str
    changelog: TopicPartition
    start_offset: int
    next_offset: int
    end_offset: int
    records: int
    elapsed_s: float

    @property
    def records_per_second(self) -> float:
        """The mean rate so far."""
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """The time left at the pace so far; None if nothing was read yet."""
        done = self.next_offset - self.start_offset
        return self.elapsed_s * (self.end_offset - self.next_offset) / done if done > 0 else None


class RestoreListener(Protocol):
    """Receives progress events. Called from the restoring thread; must not block."""

    def on_restore_start(self, progress: RestoreProgress) -> None: ...

    def on_batch_restored(self, progress: RestoreProgress) -> None: ...

    def on_restore_end(self, progress: RestoreProgress) -> None: ...

    def on_restore_suspended(self, progress: RestoreProgress) -> None: ...


class BatchPace:
    """Decides which batches are reported: at most one per second and store."""

    def __init__(self) -> None:
        self._last_told_s: dict[TopicPartition, float] = {}

    def start(self, progress: RestoreProgress) -> None:
        """Note that a restore starts, perhaps again; its first batch is reported after a second."""
        self._last_told_s[progress.changelog] = progress.elapsed_s

    def is_due(self, progress: RestoreProgress) -> bool:
        """Whether the last reported batch is at least a second old; if so, this one counts as reported."""
        if progress.elapsed_s - self._last_told_s.get(progress.changelog, 0.0) < 1.0:
            return False
        self._last_told_s[progress.changelog] = progress.elapsed_s
        return True


class LoggingRestoreListener:
    """Writes the events to the log; batches at most once per second and store."""

    def __init__(self) -> None:
        self._pace = BatchPace()

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._pace.start(progress)
        log.info(
            "restore start: store=%s changelog=%s from=%d to=%d",
            progress.store, progress.changelog, progress.start_offset, progress.end_offset,
        )  # fmt: skip

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        if not self._pace.is_due(progress):
            return
        log.info(
            "restore batch: store=%s changelog=%s at=%d to=%d records=%d rate=%.0f/s left=%.0fs",
            progress.store, progress.changelog, progress.next_offset, progress.end_offset, progress.records,
            progress.records_per_second, progress.remaining_s or 0.0,
        )  # fmt: skip

    def on_restore_end(self, progress: RestoreProgress) -> None:
        log.info(
            "restore end: store=%s changelog=%s records=%d seconds=%.2f rate=%.0f/s",
            progress.store, progress.changelog, progress.records, progress.elapsed_s, progress.records_per_second,
        )  # fmt: skip

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        log.info(
            "restore suspended: store=%s changelog=%s at=%d to=%d",
            progress.store, progress.changelog, progress.next_offset, progress.end_offset,
        )  # fmt: skip
