"""Floating-point numbers in JSON: NaN and the infinities, which JSON does not have, are strings, as Spark writes them."""

from __future__ import annotations

import json
import math

NAN, INFINITY, MINUS_INFINITY = "NaN", "Infinity", "-Infinity"

_READ = {
    NAN: math.nan,
    **dict.fromkeys((INFINITY, f"+{INFINITY}", "INF", "+INF"), math.inf),
    **dict.fromkeys((MINUS_INFINITY, "-INF"), -math.inf),
}
"""All strings that Spark reads as such a number."""


def json_number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    if math.isfinite(value):
        return value
    return NAN if math.isnan(value) else INFINITY if value > 0 else MINUS_INFINITY


def whole_number(text: str) -> float:
    """Return a number without a fraction, for `parse_int` of `json`. Arrow writes the negative zero as one."""
    return -0.0 if text == "-0" else int(text)


def read_number(value: object) -> float | None:
    """Return the number of a field that was parsed from JSON; None for null. Raises `ValueError` if it is no number."""
    if value is None:
        return None
    if isinstance(value, str) and value in _READ:
        return _READ[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{value!r} is not a number")


SIGNED = json.JSONDecoder(parse_int=whole_number)
"""Reads JSON as `json.loads` does, but -0 as the number with that sign. Made once, which takes longer than reading a row."""
