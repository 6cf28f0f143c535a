"""Many payments: a cheap producer that writes at a rate, or as fast as it may run ahead of the stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Producer
from tests.support.audit.application import BROKEN, LEAST, MOST

_BLOCK = 20_000
_LATE, _BAD = 0.05, 0.01
_LATE_MS = 180_000
_MOST_QUEUED = 400_000


@dataclass
class Load:
    """Writes payments of `keys` keys to a topic: a twentieth comes late, a hundredth is broken, as in `PaymentsApp.feed`."""

    bootstrap: str
    topic: str
    keys: int
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    written: int = 0

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 1 << 20,
                "queue.buffering.max.messages": 2 * _MOST_QUEUED,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )

    def fill(self, records: int, first_ms: int, last_ms: int) -> None:
        """Write so many records, whose times go from the one to the other. Blocks until the broker has them."""
        for number in range(0, records, _BLOCK):
            count = min(_BLOCK, records - number)
            times = first_ms + (last_ms - first_ms) * (number + np.arange(count)) // records
            self._write(times)
        self._flush()

    def run(self, stop: threading.Event, due: Callable[[], int]) -> None:
        """Write what is due, a number of all records written so far, until stopped. Their time is the clock's. Blocks."""
        while not stop.wait(0.05):
            while (count := min(_BLOCK, due() - self.written)) > 0 and not stop.is_set():
                self._write(np.full(count, time.time_ns() // 1_000_000))
        self._flush()

    def _write(self, times: np.ndarray) -> None:
        count = len(times)
        keys = self.chance.integers(0, self.keys, count)
        late = np.where(self.chance.random(count) < _LATE, self.chance.integers(0, _LATE_MS, count), 0)
        cents = self.chance.integers(LEAST, MOST, count, endpoint=True)
        bad = self.chance.random(count) < _BAD
        messages = [
            {
                "key": b"k%03d" % key,
                "value": BROKEN if is_bad else b'{"id": "k%03d", "at": %d, "cents": %d}' % (key, at, cent),
            }
            for key, at, cent, is_bad in zip(
                keys.tolist(), (times - late).tolist(), cents.tolist(), bad.tolist(), strict=True
            )
        ]
        while len(self._producer) > _MOST_QUEUED:
            self._producer.poll(0.05)
        queued = self._producer.produce_batch(self.topic, messages)
        if queued != count:
            raise RuntimeError(f"only {queued} of {count} records were queued for {self.topic}")
        self.written += count

    def _flush(self) -> None:
        if left := self._producer.flush(60):
            raise RuntimeError(f"{left} records did not reach {self.topic} in a minute")
