"""Paths of one record through a sub-topology, and the order in which they reach a join.

Kafka Streams walks the topology depth first: a record, and each result derived from it, passes the first child and everything
downstream of it before the second child. Children are in the order in which they were written. If two paths of one record end
in the same join, `Met` is the order in which it reaches the two sides. A fork is a node that may emit several results and
after which paths separate and meet again; `tasks.forks` numbers the results of forks. A topology is refused if its paths cross
so that the order cannot be determined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import (
    Aggregation,
    Pipeline,
    Process,
    Reduce,
    RowSink,
    Sink,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    Suppress,
    TableSource,
    TableTableJoin,
    TaskNode,
    Window,
)

Path = tuple[int, ...]
"""Numbers of the nodes from a source, or from a fork, onwards. Of two paths, the smaller one is walked first."""

_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class Met:
    """The order in which one record reaches the inputs of a join: which row sees the other, which results come first."""

    left_sees_right: bool
    right_sees_left: bool
    right_first: bool


LEFT_FIRST = Met(left_sees_right=False, right_sees_left=True, right_first=False)
RIGHT_FIRST = Met(left_sees_right=True, right_sees_left=False, right_first=True)


@dataclass(frozen=True)
class _Span:
    """The first-walked and the last-walked of all paths from one start to one node."""

    first: Path
    last: Path

    def to(self, number: int) -> _Span:
        return _Span((*self.first, number), (*self.last, number))

    def with_(self, other: _Span | None) -> _Span:
        return self if other is None else _Span(min(self.first, other.first), max(self.last, other.last))


_HERE = _Span((), ())

Start = int | str
"""The number of a source, or the name of a node."""


class RecordPaths:
    """The paths of one sub-topology."""

    def __init__(self, subtopology: SubTopology) -> None:
        self._subtopology = subtopology
        self._spans = _spans(subtopology)
        self._shown = _shown(subtopology, self._spans)
        self._nodes: dict[str, TaskNode | Aggregation] = {
            **{a.node: a for a in subtopology.aggregations},
            **{node.node: node for node in subtopology.nodes},
        }
        common = {
            name
            for node in subtopology.nodes
            if len(node.inputs) > 1
            for name in self._above_both(node)
            if self._may_lead_to_several(name)
        }
        self.forks = frozenset(common)
        self._passed: dict[str, dict[int, tuple[str, ...]]] = {}
        """By node and source: the forks that all rows from that source have passed, including the node itself."""
        self._chains: dict[str, dict[int, tuple[str, ...]]] = {}
        """By node and source: the forks whose numbers are compared at the node's inputs."""
        # The entries from Spark into the task loop come first: no node leads to them.
        for name in self._spans.keys() - {node.node for node in subtopology.nodes}:
            fork = (name,) if name in self.forks else ()
            self._passed[name] = dict.fromkeys(self.sources(name), fork)
        for node in subtopology.nodes:
            chains = self._chains[node.node] = self._chained(node)
            fork = (node.node,) if node.node in self.forks else ()
            self._passed[node.node] = {source: (*chains[source], *fork) for source in self.sources(node.node)}
        self._compared_by = {
            name: frozenset(fork for chain in chains.values() for fork in chain)
            for name, chains in self._chains.items()
        }

    def sources(self, node: str) -> set[int]:
        """Return the numbers of the sources whose records reach a node, not counting lookups in tables."""
        return {start for start in self._spans.get(node, {}) if isinstance(start, int)}

    def to_sink(self, sink: Sink, above: Pipeline | RowSink) -> Mapping[int, Path]:
        """Return, by source, the first-walked path of its records to a sink of this pipeline or of this node."""
        if isinstance(above, RowSink):
            spans = self._spans.get(above.node, {})
            return {start: span.first for start, span in spans.items() if isinstance(start, int)}
        return {above.source: (*(_number(step.node) for step in above.steps), _number(sink.node))}

    def compared_by(self, node: TaskNode) -> frozenset[str]:
        """Return the forks whose numbers are compared at the node's inputs."""
        return self._compared_by[node.node]

    def source_ranks(self) -> list[int]:
        """Return the rank of each source among equal times: sources that feed only tables first, then the plan's order."""
        streams: set[int] = set()
        tables = {i for i, source in enumerate(self._subtopology.sources) if source.is_table}
        for node in self._subtopology.nodes:
            if isinstance(node, StreamTableJoin):
                streams |= self.sources(node.inputs[0])
                tables |= self.sources(node.inputs[1])
        order = sorted(range(len(self._subtopology.sources)), key=lambda i: (i in streams or i not in tables, i))
        return [order.index(i) for i in range(len(order))]

    def are_merged(self, aggregation: Aggregation) -> bool:
        """Return whether the results of an aggregation take a place among the records of other sources.

        They do in a join, and in a topic that several paths write, if records of another source come there, too.
        """
        own = self.sources(aggregation.node)
        reached = {aggregation.node}
        for node in self._subtopology.nodes:
            if reached.isdisjoint(node.inputs):
                continue
            met = {source for name in node.inputs for source in self.sources(name)}
            if isinstance(node, RowSink):
                met |= self._sources_of_topic(node.sink.topic)
            if met - own:
                return True
            reached.add(node.node)
        return False

    def _sources_of_topic(self, topic: str) -> set[int]:
        """Return the numbers of the sources whose records are written to a topic."""
        found = {p.source for p in self._subtopology.pipelines if any(sink.topic == topic for sink in p.sinks)}
        for node in self._subtopology.nodes:
            if isinstance(node, RowSink) and node.sink.topic == topic:
                found |= self.sources(node.node)
        return found

    def met(self, node: TaskNode) -> Met:
        """Return the order in which a record reaches the inputs of a node with two inputs.

        The result has no meaning if no record reaches both. Raises `InvalidTopology` if the order cannot be determined.
        """
        found = {self._met(node, source) for source in self._shared(node)}
        if not found:
            return RIGHT_FIRST if isinstance(node, StreamTableJoin) else LEFT_FIRST
        lost = [name for name in self._above_both(node) if name in self.forks - self.compared_by(node)]
        if len(found) > 1 or lost:
            raise self._crossed(node)
        return found.pop()

    def check(self) -> None:
        """Raise `InvalidTopology` if paths to a join cross."""
        for node in self._subtopology.nodes:
            if len(node.inputs) > 1:
                self.met(node)

    def _met(self, node: TaskNode, source: int) -> Met:
        chain = self._chains[node.node][source]
        start: Start = chain[-1] if chain else source
        own = _number(node.node)
        left, right = (self._from(start, name, self._spans).to(own) for name in node.inputs)
        left_shown, right_shown = (self._from(start, name, self._shown) for name in node.inputs)
        if isinstance(node, StreamTableJoin):
            sees = self._is_before(right_shown, left, node)
            return Met(left_sees_right=sees, right_sees_left=not sees, right_first=sees)
        right_first = self._is_before(right, left, node)
        if isinstance(node, StreamStreamJoin):
            return Met(left_sees_right=right_first, right_sees_left=not right_first, right_first=right_first)
        return Met(self._is_before(right_shown, left, node), self._is_before(left_shown, right, node), right_first)

    def _is_before(self, one: _Span, other: _Span, node: TaskNode) -> bool:
        if one.last < other.first:
            return True
        if other.last < one.first:
            return False
        raise self._crossed(node)

    def _crossed(self, node: TaskNode) -> InvalidTopology:
        left, right = node.inputs
        topics = sorted(self._subtopology.sources[source].topic for source in self._shared(node))
        return InvalidTopology(
            f"{node.node}: a record of {' or '.join(map(repr, topics))} reaches {left} and {right} on paths that "
            f"cross, so the order in which Kafka Streams joins them cannot be kept; write everything that leads to one side "
            f"before what leads to the other, or put repartition() on one side"
        )

    def _from(self, start: Start, node: str, spans: Mapping[str, Mapping[Start, _Span]]) -> _Span:
        # Changes above the start became visible before anything was passed down from it.
        return _HERE if node == start else spans[node].get(start, _HERE)

    def _shared(self, node: TaskNode) -> list[int]:
        left, right = (self.sources(name) for name in node.inputs)
        return sorted(left & right)

    def _above_both(self, node: TaskNode) -> set[str]:
        left, right = ({name, *self._spans.get(name, {})} for name in node.inputs)
        return {name for name in self._nodes if name in left & right}

    def _chained(self, node: TaskNode) -> dict[int, tuple[str, ...]]:
        given = [self._passed.get(name, {}) for name in node.inputs]
        chains = {
            source: _common(passed[source] for passed in given if source in passed)
            for source in sorted({source for passed in given for source in passed})
        }
        while True:
            # A fork counts for all sources that pass through it, or for none: its numbers do not identify the source.
            lost = {
                fork
                for passed in given
                for source, forks in passed.items()
                for fork in forks
                if fork not in chains[source]
            }
            kept = {
                source: chain[: next((i for i, fork in enumerate(chain) if fork in lost), len(chain))]
                for source, chain in chains.items()
            }
            if kept == chains:
                return chains
            chains = kept

    def _may_lead_to_several(self, name: str) -> bool:
        """Return whether one input row may make the node emit several rows, or one record may reach it more than once."""
        node = self._nodes.get(name)
        if isinstance(node, Aggregation | Reduce):
            window = node.window
            return window is not None and not (isinstance(window, Window) and window.size_ms == window.advance_ms)
        if isinstance(node, TableTableJoin):
            return bool(self._shared(node))
        return isinstance(node, StreamStreamJoin | Process | Suppress)


def _spans(subtopology: SubTopology) -> dict[str, dict[Start, _Span]]:
    """Return, by node, the spans of paths from each source and from each node that leads to it."""
    spans: dict[str, dict[Start, _Span]] = {}
    for pipeline in subtopology.pipelines:
        end = pipeline.aggregation.node if pipeline.aggregation else pipeline.end
        path = tuple(_number(step.node) for step in pipeline.steps)
        path = (*path, _number(end)) if pipeline.aggregation else path
        known = spans.setdefault(end, {})
        known[pipeline.source] = _Span(path, path).with_(known.get(pipeline.source))
    for node in subtopology.nodes:
        own = spans.setdefault(node.node, {})
        for name in _parents(node):
            for start, span in [*spans.get(name, {}).items(), (name, _HERE)]:
                own[start] = span.to(_number(node.node)).with_(own.get(start))
    return spans


def _shown(subtopology: SubTopology, spans: Mapping[str, Mapping[Start, _Span]]) -> Mapping[str, Mapping[Start, _Span]]:
    """Return, by node, the paths after which a join that looks up its rows sees what a record has changed.

    If the user did not ask for a table's rows to be stored, another node stores them after the table's own node. In Kafka
    Streams, when it has to store them, the store belongs to the table's own node.
    """
    shown = dict(spans)
    for node in subtopology.nodes:
        if isinstance(node, TableSource) and node.is_view:
            shown[node.node] = shown[node.inputs[0]]
    return shown


def _parents(node: TaskNode) -> Iterator[str]:
    """Yield the inputs whose rows lead to the node's own rows; a table in which a stream looks up is not one."""
    yield from node.inputs[:1] if isinstance(node, StreamTableJoin) else node.inputs


def _common(chains: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the common prefix of all chains."""
    return tuple(forks[0] for forks in takewhile(lambda forks: len(set(forks)) == 1, zip(*chains, strict=False)))


def _number(node: str) -> int:
    """Return the number at the end of a node's name. It grows in the order of writing, as in Kafka Streams."""
    found = _NUMBER.search(node)
    return int(found.group()) if found else 0
