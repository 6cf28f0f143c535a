"""Differences from Kafka Streams that are known and not mended: cases that may meet one are left out, and counted by name.

`run.py --open` takes them. Whoever mends one takes it out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from tests.fuzz.case import (
    AggregateNode,
    Case,
    FilterNode,
    FoldNode,
    JoinNode,
    Node,
    ProcessNode,
    RekeyNode,
    SelectNode,
    SuppressNode,
    TableNode,
    ToNode,
    shapes,
)
from tests.fuzz.expressions import Expression


class Open(Enum):
    """One difference each, in words for the table that a run ends with."""

    NULL_NEW_KEY = "a new key that is null, at what needs none"
    """Kafka Streams 4.3.1 keeps such records at a repartition (KIP-962), Tidemark leaves them out."""
    NULL_VALUE_IN_STREAM_JOIN = "a null value at a join of streams"
    """It moves the time by which Kafka Streams' window store expires."""
    DIAMOND = "a join of two of one source, through suppress, processor, windows or join"
    """Kafka Streams walks the topology in depth, row by row."""
    FINALS_IN_A_FOLD = "several finals of one record in a fold"
    """Kafka Streams emits an update, and judges lateness, for each."""


def open_differences(case: Case) -> set[Open]:
    """Those that the case may meet."""
    return set(_found(case))


def _found(case: Case) -> Iterator[Open]:
    known = shapes(case.nodes)
    for place, node in enumerate(case.nodes):
        before = _before(case.nodes, place)
        after = list(_readers(case.nodes, place))
        if isinstance(node, RekeyNode) and _may_be_null(node.key) and any(map(_takes_null_keys, after)):
            yield Open.NULL_NEW_KEY
        if isinstance(node, JoinNode) and node.within:
            sources = known[node.left].sources | known[node.right].sources
            topics = {getattr(case.nodes[i], "topic", None) for i in sources}
            if any(r.row is None and r.topic in topics for r in case.records) or any(map(_deletes, before)):
                yield Open.NULL_VALUE_IN_STREAM_JOIN
        is_diamond = isinstance(node, JoinNode) and _sources(case.nodes, node.left) & _sources(case.nodes, node.right)
        if is_diamond and any(map(_leads_around, before)):
            yield Open.DIAMOND
        if isinstance(node, FoldNode) and any(isinstance(other, SuppressNode) for other in before):
            yield Open.FINALS_IN_A_FOLD


def _before(nodes: Sequence[Node], place: int) -> list[Node]:
    """Every node that leads to this one."""
    found = nodes[place].inputs
    return [nodes[i] for i in found] + [node for i in found for node in _before(nodes, i)]


def _sources(nodes: Sequence[Node], place: int) -> set[int]:
    inputs = nodes[place].inputs
    return {place} if not inputs else {source for i in inputs for source in _sources(nodes, i)}


def _readers(nodes: Sequence[Node], place: int) -> Iterator[Node]:
    """The nodes that take a node's records, those after filters and selects included."""
    for after, node in enumerate(nodes):
        if place in node.inputs:
            yield node
            if isinstance(node, FilterNode | SelectNode | ProcessNode):
                yield from _readers(nodes, after)


def _takes_null_keys(node: Node) -> bool:
    return isinstance(node, ToNode | ProcessNode) or (isinstance(node, JoinNode) and node.kind != "inner")


def _leads_around(node: Node) -> bool:
    is_windowed = getattr(node, "window", None) is not None
    return isinstance(node, SuppressNode | ProcessNode | JoinNode) or is_windowed


def _may_be_null(key: Expression | None) -> bool:
    return key is not None and not (key.op == "coalesce" and any(part.op == "lit" for part in key.parts))


def _deletes(node: Node) -> bool:
    """Whether a node may give deletions of its own."""
    if isinstance(node, FoldNode):
        return node.function in ("toggle", "tally_to_two")
    is_session = isinstance(node, AggregateNode) and node.window is not None and node.window.kind == "session"
    return is_session or isinstance(node, TableNode) or (isinstance(node, JoinNode) and not node.within)
