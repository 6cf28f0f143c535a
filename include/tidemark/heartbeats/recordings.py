"""The recordings that ship inside the package heartpy, with their beats. Reads its data, imports none of its code.

heartpy does not import beside the numpy used here, and nothing but its data is needed. Nothing is cached: finding the
beats of all three takes a fraction of a second, and happens once per process.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tidemark.errors import PreflightFailed
from tidemark.heartbeats.beats import Beats, Floats, Ints, find


@dataclass(frozen=True)
class Signal:
    """One photoplethysmogram, evenly sampled."""

    name: str
    samples: Floats
    rate_hz: float


@dataclass(frozen=True)
class Recording:
    """The beats of one recording, made to be looped: `at_ms` lies in [0, `period_ms`), ascending."""

    name: str
    at_ms: Ints
    ibi_ms: Ints
    period_ms: int
    bpm: float

    @classmethod
    def of(cls, name: str, beats: Beats) -> Recording:
        """Closes the loop with the median interval between the last beat and the first."""
        period_ms = int(beats.at_ms[-1]) + round(float(np.median(beats.ibi_ms)))
        return cls(name, beats.at_ms, beats.ibi_ms, period_ms, beats.bpm)

    @property
    def beats_per_second(self) -> float:
        """Of the loop, with what was left out of it."""
        return 1000 * len(self.at_ms) / self.period_ms


def data_folder() -> Path:
    """Where heartpy's data files are. Raises `PreflightFailed` when the package is not installed."""
    spec = find_spec("heartpy")
    if spec is None or not spec.submodule_search_locations:
        raise PreflightFailed(
            "the package heartpy is not installed; its recordings are replayed: `make setup` installs it"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _column(path: Path) -> Signal:
    """Values alone, 100 a second (heartpy's documentation)."""
    return Signal(path.stem, np.loadtxt(path, dtype=np.float64), 100.0)


def _with_ms_timer(path: Path) -> Signal:
    timer, samples = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True, dtype=np.float64)
    return Signal(path.stem, samples, _rate_hz(len(samples), float(timer[-1] - timer[0])))


def _with_datetime(path: Path) -> Signal:
    """The clock ticks every 16 ms, slower than the samples: as heartpy does, they are spread evenly over the whole."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, last = (datetime.fromisoformat(rows[i]["datetime"]) for i in (0, -1))
    samples = np.array([float(row["hr"]) for row in rows])
    return Signal(path.stem, samples, _rate_hz(len(samples), (last - first).total_seconds() * 1000))


def _rate_hz(samples: int, elapsed_ms: float) -> float:
    return 1000 * (samples - 1) / elapsed_ms


_READERS: dict[str, Callable[[Path], Signal]] = {
    "data": _column,
    "data2": _with_ms_timer,
    "data3": _with_datetime,
}


def signal(name: str) -> Signal:
    """One recording as it was recorded. Raises `PreflightFailed` when its file is missing."""
    path = data_folder() / f"{name}.csv"
    if not path.is_file():
        raise PreflightFailed(
            f"the installed heartpy has no {path.name}; install the version that requirements.txt names"
        )
    return _READERS[name](path)


@cache
def recordings() -> tuple[Recording, ...]:
    """All recordings, beats found. Raises `PreflightFailed` or `NoPulse`."""
    signals = (signal(name) for name in _READERS)
    return tuple(Recording.of(s.name, find(s.samples, s.rate_hz)) for s in signals)
