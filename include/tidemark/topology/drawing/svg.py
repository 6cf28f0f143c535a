"""Writing a placed picture as SVG: plain shapes, plain colours, and one style sheet for light and dark mode."""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.topology.drawing.diagram import BoxKind, text_width

if TYPE_CHECKING:
    from tidemark.topology.drawing.layout import Drawing, Frame, Placed, Points

HEAD = 26.0
"""Height of a heading."""
_MARGIN = 20.0
_SWATCH, _SWATCH_HEIGHT = 26.0, 20.0
_LEGEND_LINE = 28.0
_LEGEND = (
    (BoxKind.TOPIC, "topic"),
    (BoxKind.REPARTITION, "repartition topic"),
    (BoxKind.SPARK, "runs in Spark"),
    (BoxKind.BOTH, "runs in Spark, then in the task loop"),
    (BoxKind.LOOP, "runs in the task loop"),
    (BoxKind.STORE, "state store"),
    (BoxKind.CHANGELOG, "changelog topic"),
)
_ROUND = {BoxKind.TOPIC: 14, BoxKind.REPARTITION: 14, BoxKind.CHANGELOG: 14}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1c2128; white-space: pre; }
.small { font-size: 11px; fill: #57606a; }
.head, .figure { font-weight: bold; }
.paper { fill: #ffffff; }
.frame { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 5 4; }
.topic { fill: #ffffff; stroke: #57606a; }
.repartition { fill: #fff3d6; stroke: #9a6700; }
.changelog { fill: #ffffff; stroke: #8c959f; stroke-dasharray: 3 2; }
.spark { fill: #ffe2cc; stroke: #bc4c00; }
.loop { fill: #d8eaff; stroke: #0969da; }
.both { fill: #e9defa; stroke: #8250df; }
.store { fill: #dcf3e0; stroke: #1a7f37; }
.line { fill: none; stroke: #57606a; stroke-width: 1.4; }
.owns { fill: none; stroke: #8c959f; }
.tip { fill: #57606a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.small { fill: #a5afba; }
.paper { fill: #0d1117; }
.frame { fill: #161b22; stroke: #6e7681; }
.topic { fill: #0d1117; stroke: #8b949e; }
.repartition { fill: #3b2e0a; stroke: #d4a72c; }
.changelog { fill: #0d1117; stroke: #6e7681; }
.spark { fill: #4a2410; stroke: #f0883e; }
.loop { fill: #0f2d4f; stroke: #58a6ff; }
.both { fill: #33224f; stroke: #bc8cff; }
.store { fill: #12331c; stroke: #3fb950; }
.line { stroke: #a5afba; }
.owns { stroke: #6e7681; }
.tip { fill: #a5afba; }
}
"""


def svg(drawing: Drawing, *, is_styled: bool = True) -> str:
    """Return the whole file. Without its own style, it is an element of the class `drawing` that a page styles."""
    width, height = _number(drawing.width), _number(drawing.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" class="drawing">',
        f"<title>Topology of {_escaped(drawing.title)}</title>",
        *([f"<style>{_STYLE}</style>"] if is_styled else []),
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(_MARGIN, _MARGIN + 14, drawing.title, "head"),
    ]
    parts += [_frame(frame) for frame in drawing.frames]
    parts += [_own(points) for frame in drawing.frames for points in frame.owns]
    parts += [_line(points) for frame in drawing.frames for points in frame.lines]
    parts += [_line(points) for points in drawing.lines]
    parts += [_box(placed) for placed in drawing.boxes]
    parts += _legend(drawing)
    return "\n".join([*parts, "</svg>"]) + "\n"


def title_width(text: str) -> float:
    """Return the width of a heading in pixels; bold letters of some fonts are wider."""
    return 1.1 * text_width(text)


def legend(width: float) -> tuple[list[tuple[BoxKind, str, float, float]], float]:
    """Place the entries of the legend in as many lines as they need. Returns kind, text, x and y of each, and the height."""
    places, x, y = [], 0.0, 0.0
    for kind, words in _LEGEND:
        needed = _SWATCH + 8 + text_width(words)
        if x and x + needed > width:
            x, y = 0.0, y + _LEGEND_LINE
        places.append((kind, words, x, y))
        x += needed + 12
    return places, y + _SWATCH_HEIGHT


def _frame(frame: Frame) -> str:
    border = _rect("frame", frame.x, frame.y, frame.width, frame.height, 8)
    return border + _text(frame.x + 18, frame.y + 24, frame.heading, "head")


def _box(placed: Placed) -> str:
    box = placed.box
    baselines = box.baselines()
    x = placed.x + 10
    # The pieces of one name are spans of one text, so that the whole name can be searched for and copied.
    spans = "".join(
        f'<tspan x="{_number(x)}" y="{_number(placed.y + y)}">{_escaped(line)}</tspan>'
        for line, y in zip(box.lines, baselines, strict=False)
    )
    style = "small" if box.kind is BoxKind.CHANGELOG else "name"
    rest = [*((detail, "small") for detail in box.details), *((figure, "figure") for figure in box.figures)]
    words = "".join(
        _text(x, placed.y + y, line, kind) for (line, kind), y in zip(rest, baselines[len(box.lines) :], strict=True)
    )
    shape = _shape(box.kind, placed.x, placed.y, placed.width, placed.height)
    return f'<g>{shape}<text class="{style}">{spans}</text>{words}</g>'


def _shape(kind: BoxKind, x: float, y: float, width: float, height: float) -> str:
    if kind is not BoxKind.STORE:
        return _rect(kind.value, x, y, width, height, _ROUND.get(kind, 3))
    lid = 5.0
    arc = f"{_number(width / 2)} {_number(lid)} 0 0"
    left, right, upper, lower = (_number(n) for n in (x, x + width, y + lid, y + height - lid))
    body = f"M{left} {upper}A{arc} 1 {right} {upper}V{lower}A{arc} 1 {left} {lower}Z"
    return f'<path class="store" d="{body}"/><path class="store" d="M{left} {upper}A{arc} 0 {right} {upper}"/>'


def _rect(style: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    places = " ".join(f'{n}="{_number(v)}"' for n, v in (("x", x), ("y", y), ("width", width), ("height", height)))
    return f'<rect class="{style}" {places} rx="{_number(radius)}"/>'


def _line(points: Points) -> str:
    """Draw a line that is level along the boxes it passes and curved between them, with a tip at its end."""
    (x, y), (end_x, end_y) = points[0], points[-1]
    path = f"M{_number(x)} {_number(y)}"
    for (x, y), (to_x, to_y) in pairwise((*points[:-1], (end_x - 6, end_y))):
        if y == to_y:
            path += f"H{_number(to_x)}"
        else:
            half = _number((x + to_x) / 2)
            path += f"C{half} {_number(y)} {half} {_number(to_y)} {_number(to_x)} {_number(to_y)}"
    tip = f"M{_number(end_x)} {_number(end_y)}l-8 -4v8z"
    return f'<path class="line" d="{path}"/><path class="tip" d="{tip}"/>'


def _own(points: Points) -> str:
    places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return f'<polyline class="owns" points="{places}"/>'


def _legend(drawing: Drawing) -> list[str]:
    places, height = legend(drawing.width - 2 * _MARGIN)
    left, top = _MARGIN, drawing.height - _MARGIN - height
    return [
        _shape(kind, left + x, top + y, _SWATCH, _SWATCH_HEIGHT)
        + _text(left + x + _SWATCH + 8, top + y + 14, words, "small")
        for kind, words, x, y in places
    ]


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{_number(x)}" y="{_number(y)}">{_escaped(words)}</text>'


def _escaped(words: str) -> str:
    """Escape a text for XML, with a replacement character for each character that XML cannot contain."""
    return escape(_NOT_XML.sub("\ufffd", words))


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
