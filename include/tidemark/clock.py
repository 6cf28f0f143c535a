"""The wall clock in epoch milliseconds, and durations as text."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def duration(seconds: float) -> str:
    """Format a duration like `8.2 s`, `3:07` or `1:02:45`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
