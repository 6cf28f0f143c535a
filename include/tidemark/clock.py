"""The wall clock in epoch milliseconds, measured periods, and durations as text."""

from __future__ import annotations

import time
from dataclasses import dataclass


def wall_clock_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds since an unspecified time, of a clock that is never set back: for intervals."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Period:
    """When something began and ended, in seconds of the monotonic clock."""

    began_s: float
    ended_s: float

    @classmethod
    def since(cls, began_s: float) -> Period:
        """Return the period that ends now."""
        return cls(began_s, time.monotonic())

    @property
    def seconds(self) -> float:
        """The length of the period in seconds."""
        return self.ended_s - self.began_s


NOT_MEASURED = Period(0.0, 0.0)
"""The period of something that was not done, or not measured."""


def duration(seconds: float) -> str:
    """Format a duration like `8.2 s`, `3:07` or `1:02:45`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
