"""Windows: `tumbling("60s").grace("5s")`, `hopping("60s", "10s")`, `session("30s")`, `sliding("60s")`.

Tumbling and hopping windows are aligned to the epoch, as in Kafka Streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.errors import InvalidTopology
from tidemark.topology.durations import Duration, duration_ms, format_ms
from tidemark.topology.plan import SessionWindow, SlidingWindow, Window

MOST_WINDOWS_PER_RECORD = 1000


@dataclass(frozen=True)
class Windows:
    """Windows of `size_ms` every `advance_ms`; records are accepted until `grace_ms` after a window's end."""

    size_ms: int
    advance_ms: int
    grace_ms: int = 0

    def grace(self, duration: Duration) -> Windows:
        """Accept records that arrive up to `duration` (in stream time) after their window has ended. The default is 0."""
        return replace(self, grace_ms=duration_ms(duration, "window grace"))

    def plan(self) -> Window:
        """Return the compiled form."""
        return Window(self.size_ms, self.advance_ms, self.grace_ms)


@dataclass(frozen=True)
class SessionWindows:
    """Windows that end when a key had no record for longer than `gap_ms`."""

    gap_ms: int
    grace_ms: int = 0

    def grace(self, duration: Duration) -> SessionWindows:
        """Accept records that arrive up to `duration` (in stream time) after their session has ended. The default is 0."""
        return replace(self, grace_ms=duration_ms(duration, "window grace"))

    def plan(self) -> SessionWindow:
        """Return the compiled form."""
        return SessionWindow(self.gap_ms, self.grace_ms)


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of `difference_ms` around each record."""

    difference_ms: int
    grace_ms: int = 0

    def grace(self, duration: Duration) -> SlidingWindows:
        """Accept records that arrive up to `duration` (in stream time) after their window has ended. The default is 0."""
        return replace(self, grace_ms=duration_ms(duration, "window grace"))

    def plan(self) -> SlidingWindow:
        """Return the compiled form."""
        return SlidingWindow(self.difference_ms, self.grace_ms)


AnyWindows = Windows | SessionWindows | SlidingWindows


def session(inactivity_gap: Duration) -> SessionWindows:
    """Put records of a key into one window until none arrives for longer than the gap. Raises `InvalidTopology`."""
    return SessionWindows(_positive(inactivity_gap, "session gap"))


def sliding(time_difference: Duration) -> SlidingWindows:
    """Windows that end at each record or start just after it; their length is the difference. Raises `InvalidTopology`."""
    return SlidingWindows(_positive(time_difference, "time difference"))


def tumbling(size: Duration) -> Windows:
    """Adjacent windows: each record is in exactly one. Raises `InvalidTopology`."""
    size_ms = _positive(size, "window size")
    return Windows(size_ms, size_ms)


def hopping(size: Duration, advance: Duration) -> Windows:
    """Overlapping windows: each record is in about `size / advance` of them. Raises `InvalidTopology`."""
    size_ms, advance_ms = _positive(size, "window size"), _positive(advance, "window advance")
    if advance_ms > size_ms:
        raise InvalidTopology(
            f"window advance: {format_ms(advance_ms)} is more than the size {format_ms(size_ms)}, so records between "
            f"two windows would be lost; advance by the size or less"
        )
    if size_ms > advance_ms * MOST_WINDOWS_PER_RECORD:
        least_ms = -(-size_ms // MOST_WINDOWS_PER_RECORD)
        raise InvalidTopology(
            f"window advance: each record would be in {-(-size_ms // advance_ms)} windows, at most "
            f"{MOST_WINDOWS_PER_RECORD} are allowed; advance by {format_ms(least_ms)} or more"
        )
    return Windows(size_ms, advance_ms)


def _positive(value: Duration, where: str) -> int:
    milliseconds = duration_ms(value, where)
    if milliseconds == 0:
        raise InvalidTopology(f"{where}: {value!r} is zero; a window needs a length")
    return milliseconds
