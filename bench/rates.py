"""Computes rates from samples of committed offsets, in the same way for both sides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

WARM_UP_SHARE = 0.25


@dataclass(frozen=True)
class Sample:
    """The committed source records, summed over partitions, `seconds` after the process was started."""

    seconds: float
    committed: int


@dataclass(frozen=True)
class Rates:
    """Rates in events per second. `steady` and `from_first_commit` are None if the run was too short to have a slope."""

    total_seconds: float
    first_commit_seconds: float
    with_warm_up: float
    from_first_commit: float | None
    steady: float | None
    steady_commits: int


def commits(samples: list[Sample]) -> list[Sample]:
    """Return the samples in which the committed offsets had moved."""
    moved = _moved(samples)
    return samples[:1] + moved if samples and samples[0].committed > 0 else moved


def rates(samples: list[Sample], events: int, shortest_s: float) -> Rates:
    """Return the rates of one run from its `samples`, which are in the order of time.

    The steady rate is the slope from the commit at or after a quarter of the events to the commit of the last event. A slope
    over less than `shortest_s` is None, because the two commits of one batch follow each other faster than any side computes.
    Raises `ValueError` if the samples never reach `events`.
    """
    seen = commits(samples)
    last = next((sample for sample in seen if sample.committed >= events), None)
    if last is None:
        raise ValueError(f"{seen[-1].committed if seen else 0} of {events} events were committed")
    first = seen[0]
    warm = next(sample for sample in seen if sample.committed >= events * WARM_UP_SHARE)
    return Rates(
        total_seconds=last.seconds,
        first_commit_seconds=first.seconds,
        with_warm_up=last.committed / last.seconds,
        from_first_commit=_slope(first, last, shortest_s),
        steady=_slope(warm, last, shortest_s),
        steady_commits=sum(warm.seconds < sample.seconds <= last.seconds for sample in seen),
    )


def rate_between_commits(samples: list[Sample]) -> float | None:
    """Return the events per second from the first commit that was seen to the last; None if there are fewer than two."""
    moved = _moved(samples)
    return None if len(moved) < 2 else _slope(moved[0], moved[-1], 0.0)


def _moved(samples: list[Sample]) -> list[Sample]:
    return [after for before, after in pairwise(samples) if after.committed > before.committed]


def _slope(start: Sample, end: Sample, shortest_s: float) -> float | None:
    if end.seconds - start.seconds < shortest_s:
        return None
    return (end.committed - start.committed) / (end.seconds - start.seconds)
