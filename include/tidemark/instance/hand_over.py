"""Where the threads that compute batches meet the task loop: a queue of one, so that the next batch is computed meanwhile."""

from __future__ import annotations

import queue
import threading

from tidemark.errors import BatchTooLarge, OutcomeUnknown
from tidemark.instance.source import SourceBatch

_WAIT_S = 0.2


class HandOver:
    """One start of a source of batches, for all its sub-topologies. Once stopped it takes nothing more."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._batches: queue.Queue[SourceBatch] = queue.Queue(maxsize=1)
        self._failure: Exception | None = None

    def put(self, batch: SourceBatch) -> None:
        """Wait until the task loop has taken the batch before; give up when stopped."""
        while not self.stopped.is_set():
            try:
                self._batches.put(batch, timeout=_WAIT_S)
                return
            except queue.Full:
                continue

    def fail(self, failure: Exception) -> None:
        """Report that no more batches come."""
        self._failure = failure

    def take(self, timeout_s: float) -> SourceBatch | None:
        """The next batch, or None. Raises `OutcomeUnknown` when there is none and a computing thread has failed.

        `BatchTooLarge`, which is one, where a smaller batch may do.
        """
        try:
            return self._batches.get(timeout=timeout_s)
        except queue.Empty:
            if isinstance(self._failure, BatchTooLarge):
                raise self._failure from self._failure.__cause__
            if self._failure is not None:
                raise OutcomeUnknown(f"reading the sources failed: {self._failure}") from self._failure
            return None
