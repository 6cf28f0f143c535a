"""Figures, times and ages as text, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup, escape

UNKNOWN = "—"
_UNITS = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
_AGES = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))
_MINUTE_S, _TWO = 60, 2


def format_count(value: float | None) -> str:
    """Format a number with thousands separators and no fraction; `—` if it is unknown."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_bytes(value: int | None) -> str:
    """Format a size such as `1.5 MB`; `—` if it is unknown."""
    if value is None:
        return UNKNOWN
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size), (1, "B"))
    return f"{value / size:.1f} {unit}" if size > 1 else f"{value} {unit}"


def format_age(time_ms: int | None, now_ms: int) -> str:
    """Format how long ago a time was, such as `3 min ago`; `—` if it is unknown."""
    if time_ms is None:
        return UNKNOWN
    age_s = max(0, now_ms - time_ms) // 1000
    if age_s < _TWO:
        return "now"
    for size, name in _AGES:
        # Two of a unit or more: `90 min ago` says more than `1 h ago`.
        if age_s >= _TWO * size:
            return f"{age_s // size} {name} ago"
    return f"{age_s} s ago"


def format_span(milliseconds: float | None) -> str:
    """Format a duration: `240 ms`, `1.2 s`, `4 min`, `3 h`, `2 d`; `—` if it is unknown."""
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    if minutes < 2 * _MINUTE_S:
        return f"{minutes:.0f} min"
    return f"{hours:.0f} h" if days < _TWO else f"{days:.0f} d"


def format_clock(time_ms: int) -> str:
    """Format a time of a day such as `12:00:00` (UTC)."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%H:%M:%S}"


def format_prose(text: str, *, begins: bool = True) -> Markup:
    """Escape a message, and mark up what stands between backticks as code. `begins`: it begins a sentence."""
    parts = (f"{text[:1].upper()}{text[1:]}" if begins else text).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def format_moment(time_ms: int | None) -> str:
    """Format a time such as `2026-08-01 12:00:00 UTC`; empty if it is unknown."""
    return "" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
