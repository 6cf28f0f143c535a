"""The queue between the threads that compute batches and the task loop: one batch waits while the next is computed."""

from __future__ import annotations

import queue
import threading

from tidemark.errors import BatchTooLarge, OutcomeUnknown, PreflightFailed
from tidemark.instance.source import SourceBatch

_WAIT_S = 0.2


class HandOver:
    """The batches of one start of a source, for all its sub-topologies. Once stopped, it accepts no more."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._batches: queue.Queue[SourceBatch] = queue.Queue(maxsize=1)
        self._failure: Exception | None = None

    def put(self, batch: SourceBatch) -> None:
        """Queue a batch. Blocks until the task loop has taken the batch before, or until stopped."""
        while not self.stopped.is_set():
            try:
                self._batches.put(batch, timeout=_WAIT_S)
                return
            except queue.Full:
                continue

    def fail(self, failure: Exception) -> None:
        """Report that no more batches will come."""
        self._failure = failure

    def take(self, timeout_s: float) -> SourceBatch | None:
        """Return the next batch, or None after `timeout_s`.

        Raises `OutcomeUnknown` if a computing thread has failed, even if others still hand batches over; its subclass
        `BatchTooLarge` if a smaller batch may succeed, and of that `SparkEnded` if only the next launch can try it. Raises
        `PreflightFailed` if no launch can succeed.
        """
        failure = self._failure
        if isinstance(failure, BatchTooLarge):
            raise failure from failure.__cause__
        if isinstance(failure, PreflightFailed):
            raise failure
        if failure is not None:
            raise OutcomeUnknown(f"failed to read the sources: {failure}") from failure
        try:
            return self._batches.get(timeout=timeout_s)
        except queue.Empty:
            return None
