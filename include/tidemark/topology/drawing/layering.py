"""A layered drawing from left to right: columns by longest path, few crossings, and lines that pass between the boxes.

Uses Sugiyama's method in its plain form. Lengths are pixels, and y grows downwards. The same input gives the same drawing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_SWEEPS = 8
_LANE = 12.0
"""Height reserved where a line passes through a column."""


@dataclass(frozen=True)
class Item:
    """A box in a column."""

    key: str
    column: int
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """A line from the right side of an item to the left side of one in a later column; heights count from their tops."""

    start: str
    end: str
    leaves_at: float
    arrives_at: float


@dataclass(frozen=True)
class Layout:
    """The positions of items (left, top), the width of each item's column, and the corners of each line."""

    places: dict[str, tuple[float, float]]
    widths: dict[str, float]
    routes: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


@dataclass
class _Cell:
    """An item, or the lane of a line that passes through the column."""

    column: int
    width: float
    height: float
    y: float = 0.0
    before: list[tuple[_Cell, float, float]] = field(default_factory=list)
    after: list[tuple[_Cell, float, float]] = field(default_factory=list)


def longest_paths(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each node: 0 without predecessors, else one after the last of them. Needs edges without loops."""
    before = defaultdict[str, list[str]](list)
    for start, end in edges:
        before[end].append(start)
    columns: dict[str, int] = {}

    def column(node: str) -> int:
        if node not in columns:
            columns[node] = max((column(start) + 1 for start in before[node]), default=0)
        return columns[node]

    return {node: column(node) for node in nodes}


def arrange(items: Sequence[Item], lines: Sequence[Line], gap_x: float, gap_y: float) -> Layout:
    """Place items without overlaps, at least `gap_y` apart within a column; columns are `gap_x` apart."""
    cells = {item.key: _Cell(item.column, item.width, item.height) for item in items}
    columns: list[list[_Cell]] = [[] for _ in range(1 + max((item.column for item in items), default=-1))]
    for cell in cells.values():
        columns[cell.column].append(cell)
    chains = [_chain(cells[line.start], cells[line.end], line, columns) for line in lines]
    columns = _ordered(columns)
    widths = [max((cell.width for cell in column), default=0.0) for column in columns]
    lefts = [sum(widths[:number]) + gap_x * number for number in range(len(widths))]
    _set_heights(columns, gap_y)
    routes = []
    for line, chain in zip(lines, chains, strict=True):
        first, *lanes, last = chain
        corners = [(lefts[first.column] + widths[first.column], first.y + line.leaves_at)]
        for lane in lanes:
            middle = lane.y + _LANE / 2
            corners += [(lefts[lane.column], middle), (lefts[lane.column] + widths[lane.column], middle)]
        routes.append((*corners, (lefts[last.column], last.y + line.arrives_at)))
    return Layout(
        {key: (lefts[cell.column], cell.y) for key, cell in cells.items()},
        {key: widths[cell.column] for key, cell in cells.items()},
        tuple(routes),
        (lefts[-1] + widths[-1]) if columns else 0.0,
        max((cell.y + cell.height for column in columns for cell in column), default=0.0),
    )


def _chain(start: _Cell, end: _Cell, line: Line, columns: list[list[_Cell]]) -> list[_Cell]:
    """Return start, one lane in each column between, and end, linked with the heights at which the line meets each."""
    lanes = [_Cell(column, 0.0, _LANE) for column in range(start.column + 1, end.column)]
    for lane in lanes:
        columns[lane.column].append(lane)
    chain = [start, *lanes, end]
    ports = [line.leaves_at, *[_LANE / 2] * len(lanes), line.arrives_at]
    for place, (left, right) in enumerate(pairwise(chain)):
        left.after.append((right, ports[place], ports[place + 1]))
        right.before.append((left, ports[place + 1], ports[place]))
    return chain


def _ordered(columns: list[list[_Cell]]) -> list[list[_Cell]]:
    """Sort each column by the positions of its neighbours, forwards and backwards; keep the order with fewest crossings."""
    best, fewest = columns, _crossings(columns)
    current = [list(column) for column in columns]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for near, column in pairwise(current if forward else current[::-1]):
            _sort_by_neighbours(column, near, forward)
        crossings = _crossings(current)
        if crossings < fewest:
            best, fewest = [list(column) for column in current], crossings
    return best


def _sort_by_neighbours(column: list[_Cell], near: list[_Cell], forward: bool) -> None:
    """Sort by the mean position of connected cells in the column `near`. A cell without any stays about where it is."""
    near_places = {id(cell): place / len(near) for place, cell in enumerate(near)}
    own_places = {id(cell): place / len(column) for place, cell in enumerate(column)}

    def centre(cell: _Cell) -> float:
        # The heights order lines to the same item; they are too small to reach the position of the next item.
        met = [near_places[id(other)] + port * 1e-6 for other, _, port in (cell.before if forward else cell.after)]
        return sum(met) / len(met) if met else own_places[id(cell)]

    column.sort(key=centre)


def _crossings(columns: list[list[_Cell]]) -> int:
    found = 0
    for left, right in pairwise(columns):
        order = {id(cell): place for place, cell in enumerate(right)}
        ends = [
            ((place, leaves), (order[id(other)], arrives))
            for place, cell in enumerate(left)
            for other, leaves, arrives in cell.after
        ]
        found += sum(a[0] < b[0] and a[1] > b[1] for a in ends for b in ends)
    return found


def _set_heights(columns: list[list[_Cell]], gap_y: float) -> None:
    """Make lines as level as order and gaps allow."""
    for column in columns:
        _spread(column, [0.0] * len(column), gap_y)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            wanted = []
            for cell in column:
                met = [other.y + theirs - own for other, own, theirs in (cell.before if forward else cell.after)]
                wanted.append(sum(met) / len(met) if met else cell.y)
            _spread(column, wanted, gap_y)
    top = min((cell.y for column in columns for cell in column), default=0.0)
    for column in columns:
        for cell in column:
            cell.y = round(cell.y - top, 1)


def _spread(column: list[_Cell], wanted: list[float], gap_y: float) -> None:
    """Find the positions nearest to the wanted ones (least squares) without overlaps, in the column's order."""
    offsets = [0.0]
    for cell in column[:-1]:
        offsets.append(offsets[-1] + cell.height + gap_y)
    # Without heights and gaps this is an isotonic regression: neighbours that violate the order are pooled.
    pools: list[tuple[float, int]] = []
    for offset, want in zip(offsets, wanted, strict=False):
        mean, size = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, members = pools.pop()
            mean, size = (mean * size + other * members) / (size + members), size + members
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    for cell, offset, mean in zip(column, offsets, means, strict=False):
        cell.y = mean + offset
