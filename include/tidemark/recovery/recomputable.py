"""Decision which stores can be computed again from their source topics, whatever batches the records were processed in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

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


def not_recomputable_reason(plan: TopologyPlan, subtopology: SubTopology, spec: StoreSpec) -> str | None:
    """Return why a store cannot be computed again from the beginning of its source topics, as a clause; None if it can.

    The result must not depend on batches: which record is late depends on when stream time advanced, and a sum of
    DOUBLE depends on the order of its terms. A user's `reduce` is assumed to depend on the records alone. The store of the
    order of another store's keys depends on what has left that store.
    """
    if spec.generation > 0:
        return "an upgrade or a rescale has carried it over"
    node = _node_of(subtopology, spec)
    if any(store.has_order for store in node.stores):
        return "which entries have expired or been evicted depends on when stream time advanced"
    between = sorted({*plan.repartition_topics} & {*subtopology.source_topics})
    if between:
        return f"it is downstream of {between[0]}, which holds only records that are still to be processed"
    return _not_recomputable_node(subtopology, node)


@dataclass(frozen=True)
class RecomputedPart:
    """The part of a sub-topology that computes some stores. `pipelines` are the numbers of its pipelines in the whole."""

    subtopology: SubTopology
    pipelines: tuple[int, ...]


def recomputed_part(whole: SubTopology, stores: Collection[str]) -> RecomputedPart:
    """Return what computes these stores of a sub-topology, all of which can be computed again.

    It has all sources, and no sinks. Such stores directly follow pipelines, so nothing else is needed: no processor and no
    function of another store is called, which may do something elsewhere. But Spark must run all pipelines of the whole: a
    record for which the SQL of one of them raises is left out of the others, too.
    """

    def is_asked(node: Aggregation | TaskNode) -> bool:
        return any(store.name in stores for store in node.stores)

    nodes = tuple(node for node in whole.nodes if is_asked(node))
    taken = {name for node in nodes for name in node.inputs}
    numbers = tuple(
        number
        for number, pipeline in enumerate(whole.pipelines)
        if (is_asked(pipeline.aggregation) if pipeline.aggregation else pipeline.enters and pipeline.end in taken)
    )
    pipelines = tuple(replace(whole.pipelines[number], sinks=()) for number in numbers)
    return RecomputedPart(replace(whole, pipelines=pipelines, nodes=nodes), numbers)


def user_functions(subtopology: SubTopology, spec: StoreSpec) -> tuple[str, ...]:
    """Return the import paths of the functions that compute the store's values, as far as the user has written them.

    An application's description knows these paths, but not the code at them, which may have changed.
    """
    node = _node_of(subtopology, spec)
    return tuple(path for path in (node.function, node.initializer) if path) if isinstance(node, Reduce) else ()


def _node_of(subtopology: SubTopology, spec: StoreSpec) -> Aggregation | TaskNode:
    nodes: tuple[Aggregation | TaskNode, ...] = (*subtopology.aggregations, *subtopology.nodes)
    return next(node for node in nodes if spec in node.stores)


def _not_recomputable_node(subtopology: SubTopology, node: Aggregation | TaskNode) -> str | None:
    if isinstance(node, Aggregation | Reduce) and node.window is not None:
        return "it is windowed: which records were late depends on when stream time advanced"
    if isinstance(node, Aggregation):
        ordered = [a.call for a in node.aggregates if not (a.fold in _ANY_ORDER or _is_whole_sum(a.fold, a.number))]
        return f"{ordered[0]} depends on the order of partial results" if ordered else None
    paths = {pipeline.end for pipeline in subtopology.pipelines if pipeline.enters}
    if isinstance(node, Reduce | TableSource) and paths.issuperset(node.inputs):
        return None
    return f"{node.node} is a {type(node).__name__}, whose state depends on how records were batched"


def _is_whole_sum(fold: Fold, number: Number) -> bool:
    return fold is Fold.SUM and number is Number.LONG
