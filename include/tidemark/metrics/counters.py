"""Sums that a process adds to after each batch, and that a scrape reads."""

from __future__ import annotations

import threading
from collections import defaultdict

from tidemark.metrics.metric import Metric, Readings


class Counters:
    """Sums by metric and labels, from the start of the process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[Metric, tuple[str, ...]], float] = defaultdict(int)
        self._lock = threading.Lock()

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a sum; `labels` are the values of `metric.own_labels`."""
        with self._lock:
            self._sums[metric, labels] += value

    def read(self, readings: Readings) -> None:
        """Add every sum to the values of a scrape."""
        with self._lock:
            sums = dict(self._sums)
        for (metric, labels), value in sums.items():
            readings.add(metric, value, *labels)
