"""How fast the copies come along, and whether they are of any use: what a person, the log and the run file are told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from tidemark.names import TopicPartition
from tidemark.standby.followed import FollowedStore
from tidemark.topology.durations import about_ms

_SPAN_S = 10.0
UNHEARD_MS = 60_000
"""After so long without an answer nobody knows whether the copies are still those of the application."""


class Copy(Protocol):
    """What is asked of a copy to say whether it is of use."""

    @property
    def name(self) -> str: ...

    @property
    def lag_offsets(self) -> int: ...

    @property
    def holds_something(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...


def useless_because(copies: Collection[Copy], outdated: str | None, asked_ms: int, now_ms: int) -> str | None:
    """Why an instance that starts now would not take these copies; None where it would.

    `outdated` says what the application's description has against them, `asked_ms` when Kafka last said where it stands.
    """
    if outdated is not None:
        return outdated
    if now_ms - asked_ms > UNHEARD_MS:
        return f"Kafka has not said for {about_ms(now_ms - asked_ms)} where the application stands"
    faults = dict.fromkeys(copy.fault for copy in copies if copy.fault is not None)
    if faults:
        return f"{'; '.join(faults)}; what the copies held before is kept, and followed no more"
    cold = [copy.name for copy in copies if copy.lag_offsets > 0 and not copy.holds_something]
    return f"nothing has been read yet of {', '.join(cold)}" if cold else None


@dataclass(frozen=True)
class Pace:
    """One copy. Offsets are of the changelog; `remaining_s` is None where nothing moves.

    `fault` says why the copy is followed no more; its offsets are those of before then.
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
            fault=store.fault,
        )
