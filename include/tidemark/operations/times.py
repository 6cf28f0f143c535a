"""Points in time as text."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.errors import InvalidTopology
from tidemark.topology.durations import duration_ms


def parse_time(text: str, now_ms: int) -> int:
    """Return the epoch milliseconds of `now`, `-10m`, `1785670000000`, or ISO 8601 (UTC if it has no zone).

    Raises `ValueError` with a message for the user, also for a time in the future.
    """
    try:
        at_ms = _parsed(text.strip(), now_ms)
        written = format_time(at_ms)
    except (ValueError, OverflowError, OSError, InvalidTopology):
        raise ValueError(
            f"{text!r} is not a time: write 2026-08-01T12:00:00Z, epoch milliseconds, or -10m for ten minutes ago"
        ) from None
    if at_ms > now_ms:
        raise ValueError(f"{text} is {written}, which is in the future")
    return at_ms


def _parsed(text: str, now_ms: int) -> int:
    if text == "now":
        return now_ms
    if text.isdecimal() and len(text) >= 12:
        return int(text)
    if text.startswith("-"):
        return now_ms - duration_ms(text[1:], text)
    written = datetime.fromisoformat(text)
    zoned = written if written.tzinfo is not None else written.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def format_time(epoch_ms: int) -> str:
    """Format a time as `2026-08-01T12:00:00.250Z`."""
    seconds, milliseconds = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
