"""Charts as SVG, which a page styles: columns of a rate, and the line of a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import escape

from tidemark.overview.format import format_count

_COLUMN, _GAP, _HEIGHT = 7, 1, 96
_LINE_WIDTH, _LINE_HEIGHT, _MARGIN = 240, 40, 2


def throughput_chart(per_s: Sequence[float]) -> str:
    """Return the chart of records per second, the oldest first. Its title is for screen readers."""
    top = max(per_s, default=0.0)
    width = len(per_s) * (_COLUMN + _GAP)
    columns = "".join(
        f'<rect x="{number * (_COLUMN + _GAP)}" y="{_HEIGHT - height}" width="{_COLUMN}" height="{height}"/>'
        for number, height in enumerate(_heights(per_s, top))
        if height
    )
    mean = sum(per_s) / len(per_s) if per_s else 0.0
    title = (
        f"Records per second over the last 15 minutes: {format_count(mean)} on average, {format_count(top)} at most, "
        f"{format_count(per_s[-1] if per_s else 0)} now"
    )
    return (
        f'<svg class="chart" viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img"><title>{title}</title>'
        f'<line x1="0" y1="{_HEIGHT}" x2="{width}" y2="{_HEIGHT}"/>{columns}</svg>'
    )


def _heights(per_s: Sequence[float], top: float) -> list[int]:
    """Return the heights of the columns in pixels; one that is not empty is visible."""
    return [max(1, round(value / top * (_HEIGHT - 4))) if value else 0 for value in per_s]


def size_chart(what: str, points: Sequence[tuple[int, int]], show: Callable[[int], str]) -> str:
    """Return the line of a size over time; `points` are (epoch milliseconds, size), the oldest first, at least two.

    The line begins at zero, so that growth is not exaggerated. `what` names the size in the title for screen readers, and
    `show` formats it.
    """
    first_ms, span_ms = points[0][0], max(1, points[-1][0] - points[0][0])
    sizes = [size for _, size in points]
    top, inner = max(1, *sizes), _LINE_HEIGHT - 2 * _MARGIN
    line = " ".join(
        f"{round((time_ms - first_ms) / span_ms * _LINE_WIDTH)},{_LINE_HEIGHT - _MARGIN - round(size / top * inner)}"
        for time_ms, size in points
    )
    title = f"{what}: {show(sizes[0])} at first, at most {show(max(sizes))}, {show(sizes[-1])} now"
    return (
        f'<svg class="chart line" viewBox="0 0 {_LINE_WIDTH} {_LINE_HEIGHT}" preserveAspectRatio="none" role="img">'
        f'<title>{escape(title)}</title><polyline points="{line}"/></svg>'
    )
