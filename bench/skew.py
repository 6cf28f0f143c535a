"""Draws keys whose frequencies differ, without a generator's state: a key depends on the number of its event alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.case import Case, Integers

ZIPF_EXPONENT = 1.1


def zipf(case: Case, number: Integers) -> Integers:
    """Return patient k, counted from 0, with a probability in proportion to 1 / (k + 1) ** 1.1."""
    # Rounding may leave the last sum below 1 and a number between them, which belongs to the last patient.
    return np.minimum(np.searchsorted(_cumulative(case.keys), _uniform(number), side="right"), case.keys - 1)


def _uniform(number: Integers) -> npt.NDArray[np.floating[Any]]:
    """Return a number in [0, 1) for each event number, by the mixing function of SplitMix64 (Steele et al., 2014)."""
    mixed = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * 2.0**-53


@cache
def _cumulative(keys: int) -> npt.NDArray[np.floating[Any]]:
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    cumulative: npt.NDArray[np.floating[Any]] = np.cumsum(weights) / weights.sum()
    return cumulative
