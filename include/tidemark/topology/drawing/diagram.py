"""The parts of a plan's picture: boxes with their text, and the edges between them. Positions are computed elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from textwrap import wrap

from tidemark.names import changelog_topic
from tidemark.topology.durations import format_ms
from tidemark.topology.plan import (
    Aggregation,
    Filter,
    Map,
    Process,
    Reduce,
    Rekey,
    RowSink,
    Select,
    SessionWindow,
    Sink,
    SlidingWindow,
    Step,
    StoreSpec,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    Suppress,
    TableSource,
    TableTableJoin,
    TaskNode,
    Window,
)

_CHARACTER = 7.4
"""Width in pixels of one character at 12 px: that of the widest of the usual monospaced fonts, and a little more."""
_LINE = 15.0
_PAD_X, _PAD_Y = 10.0, 7.0
_LID = 6.0
"""Height of the ellipse on a cylinder."""
_LONGEST_LINE = 26
_LINES_OF_A_DETAIL = 2


class BoxKind(Enum):
    """Kind of a box; nodes are distinguished by where they run. The value is the style."""

    SPARK = "spark"
    LOOP = "loop"
    BOTH = "both"
    TOPIC = "topic"
    REPARTITION = "repartition"
    STORE = "store"
    CHANGELOG = "changelog"


@dataclass(frozen=True)
class Box:
    """A name, broken into lines, and smaller text below it; `figures` are the last lines. Lengths are pixels."""

    kind: BoxKind
    name: str
    details: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The name in pieces that fit a line."""
        return broken(self.name)

    @property
    def width(self) -> float:
        """The width that its longest line needs."""
        return max(text_width(line) for line in (*self.lines, *self.details, *self.figures)) + 2 * _PAD_X

    @property
    def height(self) -> float:
        """The height that its lines need."""
        return _LINE * self._line_count + 2 * _PAD_Y + self.lid

    @property
    def _line_count(self) -> int:
        return len(self.lines) + len(self.details) + len(self.figures)

    @property
    def lid(self) -> float:
        """The height of a cylinder's top; 0 for other boxes."""
        return _LID if self.kind is BoxKind.STORE else 0.0

    def baselines(self) -> list[float]:
        """Return the baselines of its lines, counted from its top."""
        return [self.lid + _PAD_Y + _LINE * (number + 1) - 4 for number in range(self._line_count)]


@dataclass(frozen=True)
class Figures:
    """Lines to write into the boxes of a running application, by name, and next to the headings of sub-topologies.

    A line that keeps its length keeps the layout.
    """

    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subtopologies: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """One sub-topology: its nodes by name, the edges between them, their stores, and the topics that it reads and writes."""

    nodes: dict[str, Box]
    edges: tuple[tuple[str, str], ...]
    stores: dict[str, tuple[Box, ...]]
    reads: tuple[tuple[str, str], ...]
    """Topic and node."""
    writes: tuple[tuple[str, str], ...]
    """Node and topic."""


def with_figures(parts: Parts, figures: Figures) -> Parts:
    """Return the parts with the figures of their nodes and stores."""
    nodes = {name: replace(box, figures=figures.nodes.get(name, ())) for name, box in parts.nodes.items()}
    stores = {
        owner: tuple(
            replace(box, figures=figures.stores.get(box.name, ())) if box.kind is BoxKind.STORE else box
            for box in boxes
        )
        for owner, boxes in parts.stores.items()
    }
    return replace(parts, nodes=nodes, stores=stores)


def text_width(text: str) -> float:
    """Return the width of a line in pixels."""
    return _CHARACTER * len(text)


def broken(name: str) -> tuple[str, ...]:
    """Break a name into lines, after separators if possible; joined they are the name."""
    lines = [""]
    for piece in re.findall(r"[^-._/:]*[-._/:]?", name):
        for start in range(0, len(piece), _LONGEST_LINE):
            part = piece[start : start + _LONGEST_LINE]
            if len(lines[-1]) + len(part) > _LONGEST_LINE:
                lines.append("")
            lines[-1] += part
    return tuple(lines)


def parts_of(application_id: str, subtopology: SubTopology) -> Parts:
    """Collect boxes and edges. Steps that several pipelines share appear once."""
    nodes: dict[str, Box] = {}
    edges: dict[tuple[str, str], None] = {}
    # If a path ends under a name that is not a node, its last node represents it.
    stands_for: dict[str, str] = {}
    writes: dict[tuple[str, str], None] = {}
    for source in subtopology.sources:
        nodes[source.node] = _node(BoxKind.SPARK, source.node, "table source" if source.is_table else "source")

    def add(before: str, node: str, box: Box) -> str:
        nodes.setdefault(node, box)
        edges[before, node] = None
        return node

    task_nodes = {node.node for node in subtopology.nodes}
    for pipeline in subtopology.pipelines:
        end = subtopology.sources[pipeline.source].node
        for step in pipeline.steps:
            end = add(end, step.node, _node(BoxKind.SPARK, step.node, *_step(step)))
        if pipeline.aggregation:
            end = add(end, pipeline.aggregation.node, _aggregation(pipeline.aggregation))
        if pipeline.end in task_nodes:
            edges[end, pipeline.end] = None
        stands_for[pipeline.end] = end
        for sink in pipeline.sinks:
            add(end, sink.node, _sink(sink.node, sink))
            writes[sink.node, sink.topic] = None
    for node in subtopology.nodes:
        nodes[node.node] = _task_node(node)
        if isinstance(node, RowSink):
            writes[node.node, node.sink.topic] = None
    for node in subtopology.nodes:
        for name in node.inputs:
            before = name if name in nodes else stands_for.get(name)
            if before is not None and before != node.node:
                edges[before, node.node] = None
    owners: tuple[Aggregation | TaskNode, ...] = (*subtopology.aggregations, *subtopology.nodes)
    return Parts(
        nodes,
        tuple(edges),
        {owner.node: tuple(b for s in owner.stores for b in _store(application_id, s)) for owner in owners},
        tuple((source.topic, source.node) for source in subtopology.sources),
        tuple(writes),
    )


def _node(kind: BoxKind, name: str, *details: str) -> Box:
    return Box(kind, name, _wrapped(details))


def _wrapped(details: Iterable[str]) -> tuple[str, ...]:
    """Break each detail into lines that fit; one longer than two lines ends in an ellipsis."""
    return tuple(line for detail in details for line in _lines(detail))


def _lines(detail: str) -> list[str]:
    # An import path is broken in the same way as a name.
    lines = wrap(detail, _LONGEST_LINE) if " " in detail else [line for line in broken(detail) if line]
    kept = lines[:_LINES_OF_A_DETAIL]
    return kept if kept == lines else [*kept[:-1], kept[-1][: _LONGEST_LINE - 2] + " …"]


def _step(step: Step) -> tuple[str, ...]:
    match step:
        case Filter():
            return "filter", step.condition
        case Select():
            return "select", ", ".join(name for name, _ in step.columns)
        case Rekey():
            return "re-key", step.key


def _aggregation(node: Aggregation) -> Box:
    results = ", ".join(f"{a.name} = {a.fold.value}({a.expression or '*'})" for a in node.aggregates)
    return _node(BoxKind.BOTH, node.node, "aggregate" + _windows(node.window), results)


def _windows(window: Window | SessionWindow | SlidingWindow | None) -> str:
    match window:
        case Window(size_ms, advance_ms) if size_ms == advance_ms:
            return f", tumbling {format_ms(size_ms)}"
        case Window(size_ms, advance_ms):
            return f", hopping {format_ms(size_ms)} every {format_ms(advance_ms)}"
        case SessionWindow(gap_ms):
            return f", sessions, gap {format_ms(gap_ms)}"
        case SlidingWindow(difference_ms):
            return f", sliding {format_ms(difference_ms)}"
    return ""


def _task_node(node: TaskNode) -> Box:
    if isinstance(node, RowSink):
        return _sink(node.node, node.sink)
    return _node(BoxKind.LOOP, node.node, *_task_details(node))


def _task_details(node: TaskNode) -> tuple[str, ...]:
    match node:
        case Suppress():
            return "suppress until windows close", f"grace {format_ms(node.grace_ms)}"
        case Reduce():
            return "reduce" + _windows(node.window), node.function
        case TableSource():
            return ("table",)
        case StreamTableJoin():
            return (f"{node.kind.value} join, stream with table",)
        case TableTableJoin():
            return (f"{node.kind.value} join, two tables",)
        case StreamStreamJoin():
            near = f"-{format_ms(node.before_ms)} … +{format_ms(node.after_ms)}"
            return f"{node.kind.value} join, two streams", f"{near}, grace {format_ms(node.grace_ms)}"
        case Process():
            return "processor", node.processor
        case Map():
            what = "filter" if node.condition else "select" if node.selected else "re-key"
            return what, node.condition or ", ".join(name for name, _ in node.selected or ()) or node.key or ""
    return (type(node).__name__.lower(),)


def _sink(name: str, sink: Sink) -> Box:
    what = "repartition sink" if sink.is_repartition else "sink"
    return _node(BoxKind.LOOP, name, f"{what}, {sink.partitioner}" if sink.partitioner else what)


def _store(application_id: str, store: StoreSpec) -> tuple[Box, ...]:
    """Return the store's cylinder, and its changelog topic if it has one of its own."""
    kept = store.custom or ("in memory" if store.in_memory else "RocksDB")
    details = [f"{store.kind.value}, {kept}"]
    if store.retention_ms is not None:
        details.append(f"retention {format_ms(store.retention_ms)}")
    if store.ttl_ms is not None:
        details.append(f"time to live {format_ms(store.ttl_ms)}")
    if store.source_topic is not None:
        details.append("changelog: its source topic")
    elif not store.is_logged:
        details.append("no changelog")
    cylinder = Box(BoxKind.STORE, store.name, _wrapped(details))
    if store.source_topic is not None or not store.is_logged:
        return (cylinder,)
    return cylinder, Box(BoxKind.CHANGELOG, changelog_topic(application_id, store.name))
