"""Which stores hold nothing but a function of what their source topics hold, whatever batches it was processed in."""

from __future__ import annotations

from tidemark.topology.plan import (
    Aggregation,
    Fold,
    Number,
    Reduce,
    StoreSpec,
    SubTopology,
    TableSource,
    TaskNode,
    TopologyPlan,
)

_ANY_ORDER = frozenset([Fold.COUNT, Fold.MIN, Fold.MAX])


def impure(plan: TopologyPlan, subtopology: SubTopology, spec: StoreSpec) -> str | None:
    """Why a store cannot be computed again from its source topics' beginnings, in one clause; None where it can.

    Batches must not matter: which record is late depends on when stream time moved, and a sum of DOUBLE on its order.
    What a user's `reduce` does is taken to depend on the records alone.
    """
    if spec.generation > 0:
        return "an upgrade or a rescale has carried it over"
    if spec.ttl_ms is not None or spec.max_entries is not None:
        return "what has left it depends on when stream time moved"
    between = sorted({*plan.repartition_topics} & {*subtopology.source_topics})
    if between:
        return f"it is behind {between[0]}, which holds no more than what is still to be processed"
    nodes: tuple[Aggregation | TaskNode, ...] = (*subtopology.aggregations, *subtopology.nodes)
    return _impure_node(subtopology, next(node for node in nodes if spec in node.stores))


def _impure_node(subtopology: SubTopology, node: Aggregation | TaskNode) -> str | None:
    if isinstance(node, TableSource):
        return None
    if isinstance(node, Aggregation | Reduce) and node.window is not None:
        return "it is windowed: which records were late depends on when stream time moved"
    if isinstance(node, Aggregation):
        ordered = [a.call for a in node.aggregates if not (a.fold in _ANY_ORDER or _is_whole_sum(a.fold, a.number))]
        return f"{ordered[0]} depends on the order of partial results" if ordered else None
    roads = {branch.end for branch in subtopology.branches if branch.enters}
    if isinstance(node, Reduce) and roads.issuperset(node.inputs):
        return None
    return f"{node.node} is a {type(node).__name__}, whose state depends on how records were batched"


def _is_whole_sum(fold: Fold, number: Number) -> bool:
    return fold is Fold.SUM and number is Number.LONG
