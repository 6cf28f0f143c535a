"""Pseudo-random numbers as a pure function: the same seed and numbers give the same draw, however a replay is sliced.

SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) over whole columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demo.heartbeats.beats import Floats, Ints

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def uniform(seed: int, draw: int, *identity: Ints) -> Floats:
    """Return numbers in [0, 1), one per row of the identity columns; each `draw` is independent of the others."""
    state = np.full(len(identity[0]), (seed * _GAMMA + draw) & _MASK, dtype=np.uint64)
    for column in identity:
        state = _mix(state * np.uint64(_GAMMA) + column.astype(np.uint64))
    mixed: Floats = (_mix(state + np.uint64(_GAMMA)) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return mixed
