"""Computes how fast the copies of a standby advance, and whether an instance would use them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from tidemark.names import TopicPartition
from tidemark.queries.position import UNHEARD_MS
from tidemark.standby.store_replica import FollowedStore
from tidemark.topology.durations import about_ms

_SPAN_S = 10.0


class Copy(Protocol):
    """The part of a copy that decides whether it is useful."""

    @property
    def name(self) -> str: ...

    @property
    def lag_offsets(self) -> int: ...

    @property
    def holds_something(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...


def useless_because(copies: Collection[Copy], outdated: str | None, asked_ms: int, now_ms: int) -> str | None:
    """Return why an instance that starts now would not take these copies; None if it would.

    `outdated` is the reason by the application's description, `asked_ms` the time at which Kafka was last asked about
    the application.
    """
    if outdated is not None:
        return outdated
    if now_ms - asked_ms > UNHEARD_MS:
        return f"Kafka has not answered for {about_ms(now_ms - asked_ms)}; the application's progress is not known"
    faults = dict.fromkeys(copy.fault for copy in copies if copy.fault is not None)
    if faults:
        return f"{'; '.join(faults)}; what the copies held before is kept, and no longer followed"
    cold = [copy.name for copy in copies if copy.lag_offsets > 0 and not copy.holds_something]
    return f"nothing has been read yet of {', '.join(cold)}" if cold else None


@dataclass(frozen=True)
class CatchUpRate:
    """The progress of one copy. Offsets are of the changelog; `remaining_s` is None if the copy does not advance.

    `fault` says why the copy is no longer followed; then its offsets are those of before.
    """

    task: str
    store: str
    next_offset: int
    end_offset: int
    lag_offsets: int
    records_per_second: float
    remaining_s: float | None
    fault: str | None = None


class PaceMeter:
    """Measures rates over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: dict[TopicPartition, deque[tuple[float, int, int]]] = {}

    def measure(self, stores: Iterable[FollowedStore]) -> list[CatchUpRate]:
        """Take a sample of every copy, and return the progress."""
        return [self._measure_one(store, time.monotonic()) for store in stores]

    def _measure_one(self, store: FollowedStore, now_s: float) -> CatchUpRate:
        samples = self._samples.setdefault(store.job.changelog, deque())
        samples.append((now_s, store.next_offset, store.records))
        while samples[0][0] < now_s - _SPAN_S:
            samples.popleft()
        first_s, first_offset, first_records = samples[0]
        elapsed_s = max(now_s - first_s, 1e-9)
        moved = store.next_offset - first_offset
        lag = store.lag_offsets
        return CatchUpRate(
            task=str(store.task),
            store=store.job.spec.name,
            next_offset=store.next_offset,
            end_offset=store.bounds.end_offset,
            lag_offsets=lag,
            records_per_second=(store.records - first_records) / elapsed_s,
            remaining_s=0.0 if lag == 0 else (lag * elapsed_s / moved if moved > 0 else None),
            fault=store.fault,
        )
