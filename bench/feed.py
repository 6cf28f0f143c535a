"""Feeds the events of a case at a fixed rate, while something else is measured."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from bench.case import Case
from bench.errors import BenchFailed
from bench.events import blocks
from bench.load import input_producer, queue

_EVERY_S = 0.02
_FLUSH_S = 60.0


class Feed:
    """Produces `rate` events per second in a thread, from number `begin` on, at most until the end of a `with` block.

    At any time, the topic holds no event from number `sent` on.
    """

    def __init__(self, bootstrap: str, case: Case, start_ms: int, rate: int, begin: int) -> None:
        self.sent = begin
        self._bootstrap, self._case, self._start_ms, self._rate = bootstrap, case, start_ms, rate
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "feed")

    def __enter__(self) -> Self:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def require_running(self) -> None:
        """Raise the error that has ended the feed, if there is one."""
        if self._running.done():
            self._running.result()

    def stop(self) -> int:
        """Stop, wait until the topic holds all events, and return their number. Raises the error that has ended the feed."""
        self._stop.set()
        self._running.result()
        return self.sent

    def _run(self) -> None:
        producer = input_producer(self._bootstrap)
        began, first = time.monotonic(), self.sent
        while not self._stop.wait(_EVERY_S):
            begin, self.sent = self.sent, first + int((time.monotonic() - began) * self._rate)
            for block in blocks(self._case.sized(self.sent), self._start_ms, begin):
                queue(producer, block)
            producer.poll(0)
        if producer.flush(_FLUSH_S):
            raise BenchFailed("the broker did not take all events")
