"""How fast the copies come along: what a person, the log and the run file are told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.names import TopicPartition
from tidemark.standby.followed import FollowedStore

_SPAN_S = 10.0


@dataclass(frozen=True)
class Pace:
    """One copy. Offsets are of the changelog; `remaining_s` is None where nothing moves."""

    task: str
    store: str
    next_offset: int
    end_offset: int
    lag_offsets: int
    records_per_second: float
    remaining_s: float | None


class PaceMeter:
    """Rates over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: dict[TopicPartition, deque[tuple[float, int, int]]] = {}

    def measure(self, stores: Iterable[FollowedStore]) -> list[Pace]:
        """Take a sample of every copy."""
        return [self._measure_one(store, time.monotonic()) for store in stores]

    def _measure_one(self, store: FollowedStore, now_s: float) -> Pace:
        samples = self._samples.setdefault(store.job.changelog, deque())
        samples.append((now_s, store.next_offset, store.records))
        while samples[0][0] < now_s - _SPAN_S:
            samples.popleft()
        first_s, first_offset, first_records = samples[0]
        elapsed_s = max(now_s - first_s, 1e-9)
        moved = store.next_offset - first_offset
        lag = store.lag_offsets
        return Pace(
            task=str(store.task),
            store=store.job.spec.name,
            next_offset=store.next_offset,
            end_offset=store.bounds.end_offset,
            lag_offsets=lag,
            records_per_second=(store.records - first_records) / elapsed_s,
            remaining_s=0.0 if lag == 0 else (lag * elapsed_s / moved if moved > 0 else None),
        )
