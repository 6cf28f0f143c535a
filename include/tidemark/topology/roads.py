"""The roads that one record takes through a sub-topology, and where they meet again.

Kafka Streams walks the topology in depth: a record, and each result that it leads to, goes down the first child and all that
is behind it before the second, children in the order in which they were written. Where two roads of one record end in one
join, `Met` says which side it reaches first. Nodes that may lead to several results, and behind which roads part that meet
again, are forks: `tasks.forks` numbers their results. A topology whose roads cross so that neither can tell is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import (
    Aggregation,
    Process,
    Reduce,
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
"""Numbers of the nodes from a source, or from a fork, on; of two paths the smaller is walked first."""

_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class Met:
    """Where one record has come to both inputs of a join: whose row the other's sees, and whose results come first."""

    left_sees_right: bool
    right_sees_left: bool
    right_first: bool


LEFT_FIRST = Met(left_sees_right=False, right_sees_left=True, right_first=False)
RIGHT_FIRST = Met(left_sees_right=True, right_sees_left=False, right_first=True)


@dataclass(frozen=True)
class _Span:
    """Of all paths from one start to one node, that which is walked first and that which is walked last."""

    first: Path
    last: Path

    def to(self, number: int) -> _Span:
        return _Span((*self.first, number), (*self.last, number))

    def with_(self, other: _Span | None) -> _Span:
        return self if other is None else _Span(min(self.first, other.first), max(self.last, other.last))


_HERE = _Span((), ())

Start = int | str
"""A source's number, or a node."""


class Roads:
    """The roads of one sub-topology."""

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
        """By node and source: the forks that all rows from that source have passed, itself included."""
        self._chains: dict[str, dict[int, tuple[str, ...]]] = {}
        """By node and source: the forks by whose numbers the node compares its inputs."""
        # What no node leads to, the roads into the task loop, comes first.
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
        """Numbers of the sources whose records reach a node, a lookup in a table aside."""
        return {start for start in self._spans.get(node, {}) if isinstance(start, int)}

    def compared_by(self, node: TaskNode) -> frozenset[str]:
        """The forks by whose numbers the node compares its inputs."""
        return self._compared_by[node.node]

    def source_ranks(self) -> list[int]:
        """The rank of each source among equal times: those that feed only tables first, then in the plan's order."""
        streams: set[int] = set()
        tables = {i for i, source in enumerate(self._subtopology.sources) if source.is_table}
        for node in self._subtopology.nodes:
            if isinstance(node, StreamTableJoin):
                streams |= self.sources(node.inputs[0])
                tables |= self.sources(node.inputs[1])
        order = sorted(range(len(self._subtopology.sources)), key=lambda i: (i in streams or i not in tables, i))
        return [order.index(i) for i in range(len(order))]

    def met(self, node: TaskNode) -> Met:
        """For a node of two inputs. Where no record reaches both, whatever it says has no meaning.

        Raises `InvalidTopology` where the order in which a record reaches them cannot be told.
        """
        found = {self._met(node, source) for source in self._shared(node)}
        if not found:
            return RIGHT_FIRST if isinstance(node, StreamTableJoin) else LEFT_FIRST
        lost = [name for name in self._above_both(node) if name in self.forks - self.compared_by(node)]
        if len(found) > 1 or lost:
            raise self._crossed(node)
        return found.pop()

    def check(self) -> None:
        """Raises `InvalidTopology` for a join to which roads cross."""
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
            f"{node.node}: a record of {' or '.join(map(repr, topics))} comes to {left} and to {right} over roads that "
            f"cross, so that the order in which Kafka Streams joins them cannot be kept; write all that leads to one side "
            f"before what leads to the other, or put repartition() on one side"
        )

    def _from(self, start: Start, node: str, spans: Mapping[str, Mapping[Start, _Span]]) -> _Span:
        # What is shown above the start was there before anything went down from it.
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
            # A fork counts for every source that comes by it, or for none: its numbers do not tell the source.
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
        """Whether one row of its inputs may make the node emit several, or one record reach it more than once."""
        node = self._nodes.get(name)
        if isinstance(node, Aggregation | Reduce):
            window = node.window
            return window is not None and not (isinstance(window, Window) and window.size_ms == window.advance_ms)
        if isinstance(node, TableTableJoin):
            return bool(self._shared(node))
        return isinstance(node, StreamStreamJoin | Process | Suppress)


def _spans(subtopology: SubTopology) -> dict[str, dict[Start, _Span]]:
    """By node, from each source and each node that leads to it."""
    spans: dict[str, dict[Start, _Span]] = {}
    for branch in subtopology.branches:
        end = branch.aggregation.node if branch.aggregation else branch.end
        path = tuple(_number(step.node) for step in branch.steps)
        path = (*path, _number(end)) if branch.aggregation else path
        known = spans.setdefault(end, {})
        known[branch.source] = _Span(path, path).with_(known.get(branch.source))
    for node in subtopology.nodes:
        own = spans.setdefault(node.node, {})
        for name in _parents(node):
            for start, span in [*spans.get(name, {}).items(), (name, _HERE)]:
                own[start] = span.to(_number(node.node)).with_(own.get(start))
    return spans


def _shown(subtopology: SubTopology, spans: Mapping[str, Mapping[Start, _Span]]) -> Mapping[str, Mapping[Start, _Span]]:
    """By node, the paths behind which a join that looks its rows up sees what a record has changed.

    The rows of a table that nobody asked to keep are stored behind its node, by another; Kafka Streams' own store, where it
    is told to keep them, is that of the node.
    """
    shown = dict(spans)
    for node in subtopology.nodes:
        if isinstance(node, TableSource) and node.is_view:
            shown[node.node] = shown[node.inputs[0]]
    return shown


def _parents(node: TaskNode) -> Iterator[str]:
    """The inputs whose rows lead to the node's own: a table that a stream looks into is none."""
    yield from node.inputs[:1] if isinstance(node, StreamTableJoin) else node.inputs


def _common(chains: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """What all of them begin with."""
    return tuple(forks[0] for forks in takewhile(lambda forks: len(set(forks)) == 1, zip(*chains, strict=False)))


def _number(node: str) -> int:
    """When the node was written: names end with it, as in Kafka Streams."""
    found = _NUMBER.search(node)
    return int(found.group()) if found else 0
