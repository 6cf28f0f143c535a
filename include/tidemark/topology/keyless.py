"""What becomes of records without a key: which nodes need one, and where a branch leads (KIP-962)."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.topology.plan import (
    Branch,
    JoinKind,
    Map,
    Reduce,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    TableSource,
    TaskNode,
)


def needs_key(subtopology: SubTopology, branch: Branch) -> bool:
    """Whether something that the branch leads to has no use for a record without a key: such a record is a dead letter."""
    return branch.aggregation is not None or any(needs_key_of(*taker) for taker in _takers(subtopology, branch))


def takes_keyless(subtopology: SubTopology, branch: Branch) -> bool:
    """Whether a record without a key does anything: at a sink, a processor, an outer join, to the time of a stream join."""
    return bool(branch.sinks) or any(
        isinstance(node, StreamStreamJoin) or not needs_key_of(node, side)
        for node, side in _takers(subtopology, branch)
    )


def needs_key_of(node: TaskNode, side: int) -> bool:
    """Whether a node has no use for a row of its input `side` without a key."""
    if isinstance(node, StreamStreamJoin):
        return node.kind is JoinKind.INNER or (node.kind is JoinKind.LEFT and side == 1)
    if isinstance(node, StreamTableJoin):
        return node.kind is JoinKind.INNER and side == 0
    return isinstance(node, TableSource | Reduce)


def _takers(subtopology: SubTopology, branch: Branch) -> Iterator[tuple[TaskNode, int]]:
    """The nodes that take the branch's rows, filters and selects aside, and at which input."""
    names = {branch.end} if branch.enters else set()
    for node in subtopology.nodes:
        for side, name in enumerate(node.inputs):
            if name not in names:
                continue
            if isinstance(node, Map) and node.key is None:
                names.add(node.node)
            else:
                yield node, side
