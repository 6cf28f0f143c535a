"""The recordings inside the package heartpy, with their beats. Reads its data files, imports none of its code.

heartpy cannot be imported beside the numpy used here, and nothing but its data is needed. There is no cache on disk:
finding the beats of all three takes a fraction of a second, once per process.
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

from demo.heartbeats.beats import Beats, Floats, Ints, find
from tidemark.errors import PreflightFailed


@dataclass(frozen=True)
class Signal:
    """One photoplethysmogram, evenly sampled."""

    name: str
    samples: Floats
    rate_hz: float


@dataclass(frozen=True)
class Recording:
    """The beats of one recording, as a loop: `at_ms` is in [0, `period_ms`), ascending."""

    name: str
    at_ms: Ints
    ibi_ms: Ints
    period_ms: int
    bpm: float

    @classmethod
    def of(cls, name: str, beats: Beats) -> Recording:
        """Close the loop with the median interval between the last beat and the first."""
        period_ms = int(beats.at_ms[-1]) + round(float(np.median(beats.ibi_ms)))
        return cls(name, beats.at_ms, beats.ibi_ms, period_ms, beats.bpm)

    @property
    def beats_per_second(self) -> float:
        """Return the rate of the loop, including the beats that were removed."""
        return 1000 * len(self.at_ms) / self.period_ms


def data_folder() -> Path:
    """Return the folder of heartpy's data files. Raises `PreflightFailed` if the package is not installed."""
    spec = find_spec("heartpy")
    if spec is None or not spec.submodule_search_locations:
        raise PreflightFailed("heartpy is not installed, but its recordings are replayed: install it with `make setup`")
    return Path(spec.submodule_search_locations[0]) / "data"


def _column(path: Path) -> Signal:
    """Read a file of values only, 100 a second (heartpy's documentation)."""
    return Signal(path.stem, np.loadtxt(path, dtype=np.float64), 100.0)


def _with_ms_timer(path: Path) -> Signal:
    timer, samples = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True, dtype=np.float64)
    return Signal(path.stem, samples, _rate_hz(len(samples), float(timer[-1] - timer[0])))


def _with_datetime(path: Path) -> Signal:
    """Read a file with a clock, whose ticks of 16 ms are longer than a sample: as in heartpy, samples are spread evenly."""
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
    """Return one recording as it was recorded. Raises `PreflightFailed` if its file is missing."""
    path = data_folder() / f"{name}.csv"
    if not path.is_file():
        raise PreflightFailed(
            f"the installed heartpy has no {path.name}; install the version that requirements.txt names"
        )
    return _READERS[name](path)


@cache
def recordings() -> tuple[Recording, ...]:
    """Return all recordings with their beats. Raises `PreflightFailed` or `NoPulse`."""
    signals = (signal(name) for name in _READERS)
    return tuple(Recording.of(s.name, find(s.samples, s.rate_hz)) for s in signals)
