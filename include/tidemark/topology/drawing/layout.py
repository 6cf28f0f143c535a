"""Pictures of plans: `picture(plan)` returns one SVG that needs no other font, script or file.

Topics are left of, right of and between the sub-topologies. Each sub-topology contains its nodes, and below each node its
stores with their changelogs. The colour of a node shows where it runs. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from tidemark.topology.drawing.diagram import Box, BoxKind, Figures, Parts, parts_of, with_figures
from tidemark.topology.drawing.layering import Item, Line, arrange, longest_paths
from tidemark.topology.drawing.svg import HEAD, legend, svg, title_width
from tidemark.topology.plan import SubTopology, TopologyPlan

Point = tuple[float, float]
Points = tuple[Point, ...]

_MARGIN = 20.0
_NARROWEST = 640.0
_PAD = 18.0
_GAP_X, _GAP_Y = 38.0, 20.0
_OUTER_GAP_X, _OUTER_GAP_Y = 56.0, 26.0
_STORE_GAP, _INDENT = 8.0, 18.0


@dataclass(frozen=True)
class Placed:
    """A box with the position of its upper left corner. Lengths are pixels, and y grows downwards."""

    box: Box
    x: float
    y: float
    width: float

    @property
    def height(self) -> float:
        """The height of its box."""
        return self.box.height

    @property
    def middle(self) -> float:
        """The height at which lines reach it."""
        return self.y + self.height / 2

    def moved(self, x: float, y: float) -> Placed:
        """Return the same box at another position."""
        return Placed(self.box, self.x + x, self.y + y, self.width)


@dataclass(frozen=True)
class Frame:
    """A sub-topology: its border and its contents. `lines` lead to the next node, `owns` from a node to its stores."""

    heading: str
    x: float
    y: float
    width: float
    height: float
    nodes: dict[str, Placed]
    stores: tuple[Placed, ...]
    lines: tuple[Points, ...]
    owns: tuple[Points, ...]

    def moved(self, x: float, y: float) -> Frame:
        """Return the same frame at another position."""
        return Frame(
            self.heading,
            self.x + x,
            self.y + y,
            self.width,
            self.height,
            {name: node.moved(x, y) for name, node in self.nodes.items()},
            tuple(store.moved(x, y) for store in self.stores),
            tuple(_moved(line, x, y) for line in self.lines),
            tuple(_moved(line, x, y) for line in self.owns),
        )


@dataclass(frozen=True)
class Drawing:
    """The complete layout, which `picture` writes and tests measure."""

    title: str
    frames: tuple[Frame, ...]
    topics: tuple[Placed, ...]
    lines: tuple[Points, ...]
    width: float
    height: float

    @property
    def boxes(self) -> tuple[Placed, ...]:
        """All topics, nodes, stores and changelogs."""
        inside = ((*frame.nodes.values(), *frame.stores) for frame in self.frames)
        return (*self.topics, *chain.from_iterable(inside))


def picture(plan: TopologyPlan) -> str:
    """Return the SVG of the whole application. The same plan always gives the same text."""
    return svg(draw(plan))


def live_picture(plan: TopologyPlan, figures: Figures) -> str:
    """Return an SVG element with the figures of a running application, for a page that has its own style sheet."""
    return svg(draw(plan, figures), is_styled=False)


def draw(plan: TopologyPlan, figures: Figures | None = None) -> Drawing:
    """Place everything: topics and sub-topologies in alternating columns, and the nodes inside each sub-topology."""
    shown = figures or Figures()
    title = f"{plan.application_id}, version {plan.version}"
    parts = {s.index: with_figures(parts_of(plan.application_id, s), shown) for s in plan.subtopologies}
    frames = {s.index: _frame(_heading(s, shown), parts[s.index]) for s in plan.subtopologies}
    reads = [(topic, index, node) for index, part in parts.items() for topic, node in part.reads]
    writes = [(topic, index, node) for index, part in parts.items() for node, topic in part.writes]
    topics = {name: replace(box, figures=shown.topics.get(name, ())) for name, box in _topics(plan).items()}
    columns = _columns(plan, reads, writes)
    items = [Item(f"topic {name}", columns[f"topic {name}"], box.width, box.height) for name, box in topics.items()]
    items += [Item(f"sub {i}", columns[f"sub {i}"], frame.width, frame.height) for i, frame in frames.items()]
    lines = [Line(f"topic {t}", f"sub {i}", topics[t].height / 2, frames[i].nodes[n].middle) for t, i, n in reads]
    lines += [Line(f"sub {i}", f"topic {t}", frames[i].nodes[n].middle, topics[t].height / 2) for t, i, n in writes]
    layout = arrange(items, lines, _OUTER_GAP_X, _OUTER_GAP_Y)
    left, top = _MARGIN, _MARGIN + HEAD
    placed = {i: f.moved(*_plus(layout.places[f"sub {i}"], left, top)) for i, f in frames.items()}
    drawn = []
    for route, (_, index, node) in zip(layout.routes[: len(reads)], reads, strict=True):
        # Continue inside the frame, from its border to the node.
        corners = _moved(route, left, top)
        drawn.append((*corners, (placed[index].nodes[node].x, corners[-1][1])))
    for route, (_, index, node) in zip(layout.routes[len(reads) :], writes, strict=True):
        corners = _moved(route, left, top)
        end = placed[index].nodes[node]
        drawn.append(((end.x + end.width, corners[0][1]), *corners))
    width = max(layout.width, title_width(title), _NARROWEST)
    return Drawing(
        title,
        tuple(placed.values()),
        tuple(
            Placed(box, *_plus(layout.places[f"topic {name}"], left, top), layout.widths[f"topic {name}"])
            for name, box in topics.items()
        ),
        tuple(drawn),
        width + 2 * _MARGIN,
        top + layout.height + 2 * _MARGIN + legend(width)[1],
    )


def _topics(plan: TopologyPlan) -> dict[str, Box]:
    """Return every topic that is read or written, once."""
    names = chain.from_iterable((*s.source_topics, *s.sink_topics) for s in plan.subtopologies)
    between = set(plan.repartition_topics)
    return {
        name: Box(BoxKind.REPARTITION, name, ("repartition",)) if name in between else Box(BoxKind.TOPIC, name)
        for name in names
    }


def _columns(
    plan: TopologyPlan, reads: Iterable[tuple[str, int, str]], writes: Iterable[tuple[str, int, str]]
) -> dict[str, int]:
    """Put topics in the even columns and sub-topologies in the odd ones."""
    edges = [(f"topic {t}", f"sub {i}") for t, i, _ in reads] + [(f"sub {i}", f"topic {t}") for t, i, _ in writes]
    columns = longest_paths(dict.fromkeys(chain.from_iterable(edges)), edges)
    written = {end for _, end in edges}
    for start in dict.fromkeys(start for start, _ in edges if start not in written):
        # A source is next to its first reader, not at the far left.
        columns[start] = min(columns[end] for begin, end in edges if begin == start) - 1
    return columns


def _heading(subtopology: SubTopology, figures: Figures) -> str:
    figure = figures.subtopologies.get(subtopology.index)
    return f"Sub-topology {subtopology.index}" + (f", {figure}" if figure else "")


def _frame(heading: str, parts: Parts) -> Frame:
    """Lay out one sub-topology with its upper left corner at (0, 0)."""
    columns = longest_paths(parts.nodes, parts.edges)
    last = max(columns.values(), default=0)
    for node, _ in parts.writes:
        # All sinks are at the right border, so that their lines to the topics cross nothing.
        columns[node] = last
    items = [_cell(name, columns[name], box, parts.stores.get(name, ())) for name, box in parts.nodes.items()]
    lines = [Line(a, b, parts.nodes[a].height / 2, parts.nodes[b].height / 2) for a, b in parts.edges]
    layout = arrange(items, lines, _GAP_X, _GAP_Y)
    left, top = _PAD, _PAD + HEAD
    nodes = {
        name: Placed(box, *_plus(layout.places[name], left, top), layout.widths[name])
        for name, box in parts.nodes.items()
    }
    stores, owns = list[Placed](), list[Points]()
    for name, boxes in parts.stores.items():
        owner = above = nodes[name]
        y = owner.y + owner.height
        for box in boxes:
            depth = 2 if box.kind is BoxKind.CHANGELOG else 1
            y += _STORE_GAP
            x = owner.x + _INDENT * depth
            stores.append(Placed(box, x, y, owner.width - _INDENT * depth))
            # A store hangs from its node, a changelog from the store above it; the line starts at the parent.
            parent = above if depth == 2 else owner
            trunk = x - _INDENT / 2
            owns.append(((trunk, parent.middle), (trunk, stores[-1].middle), (x, stores[-1].middle)))
            above = stores[-1]
            y += box.height
    width = max(layout.width + 2 * _PAD, title_width(heading) + 2 * _PAD)
    routes = tuple(_moved(route, left, top) for route in layout.routes)
    height = layout.height + 2 * _PAD + HEAD
    return Frame(heading, 0.0, 0.0, width, height, nodes, tuple(stores), routes, tuple(owns))


def _cell(name: str, column: int, node: Box, stores: tuple[Box, ...]) -> Item:
    """Return a node together with the stores below it as one item."""
    widths = [box.width + _INDENT * (2 if box.kind is BoxKind.CHANGELOG else 1) for box in stores]
    return Item(name, column, max([node.width, *widths]), node.height + sum(_STORE_GAP + box.height for box in stores))


def _plus(point: Point, x: float, y: float) -> Point:
    return point[0] + x, point[1] + y


def _moved(points: Points, x: float, y: float) -> Points:
    return tuple(_plus(point, x, y) for point in points)
