"""Durations as written in topologies: `"500ms"`, `"60s"`, `"5m"`, `"6h"`, `"1d"`, a timedelta, or int milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta

from tidemark.errors import InvalidTopology

Duration = str | int | timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN = re.compile(r"^\s*(\d{1,15})\s*(ms|s|m|h|d)\s*$")
_LONGEST_MS = 100 * 365 * _UNITS_MS["d"]


def duration_ms(value: Duration, where: str) -> int:
    """Convert a duration to whole milliseconds, 0 or more.

    Raises `InvalidTopology` with a message that begins with `where` for another type, an unknown unit, a negative duration, a
    fraction of a millisecond, or more than 100 years.
    """
    if isinstance(value, timedelta):
        milliseconds, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise InvalidTopology(f"{where}: {value!r} is not a whole number of milliseconds; round it")
    elif isinstance(value, int) and not isinstance(value, bool):
        milliseconds = value
    elif isinstance(value, str) and (written := _WRITTEN.match(value)):
        milliseconds = int(written[1]) * _UNITS_MS[written[2]]
    else:
        raise InvalidTopology(
            f"{where}: {value!r} is not a duration; write '500ms', '60s', '5m', '6h' or '1d', "
            f"a timedelta, or milliseconds as an int"
        )
    if milliseconds < 0:
        raise InvalidTopology(f"{where}: {value!r} is negative; a duration is zero or more")
    if milliseconds > _LONGEST_MS:
        raise InvalidTopology(f"{where}: {value!r} is more than 100 years; give a shorter duration")
    return milliseconds


def format_ms(milliseconds: int) -> str:
    """Format a duration in the shortest exact form: `60000` is `1m`, `90000` is `90s`."""
    if milliseconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms"


def about_ms(milliseconds: int) -> str:
    """Format a measured duration for display, to about two digits: `95s`, `3.5h`, `12d`."""
    for unit in ("d", "h", "m"):
        if milliseconds >= 2 * _UNITS_MS[unit]:
            return f"{milliseconds / _UNITS_MS[unit]:.3g}{unit}"
    return f"{milliseconds / 1000:.3g}s"
