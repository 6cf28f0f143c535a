"""Hashes of how each store is computed from its source topics: another hash means that the computation has changed.

The past of a store is what `--from source` must repeat: all records, computed by the topology of today. If another topology
computed some of them, or a command skipped some, the result would differ from what the store rightly holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tidemark.topology.plan import Aggregation, Pipeline, Reduce, StoreSpec, SubTopology, TaskNode, TopologyPlan
from tidemark.topology.value_serde import ValueSerde

CHANGED = (
    "since its first record, the topology has changed how it reads, selects or computes what the store holds, or the SQL of "
    "another path of the same source"
)
UNRECORDED = "an earlier version of Tidemark did not record how it was computed"
CARRIED_OVER = "an upgrade has carried it over"
BEGAN_LATER = "an upgrade let it begin empty, after other records had been processed"
MOVED = "a reset that kept the state has skipped records or repeated them"

_HASH_DIGITS = 16


def computations(plan: TopologyPlan) -> dict[str, str]:
    """Return a hash of the way in which each store is computed, by store.

    It covers the sources with their schema, key and timestamp, the steps up to the store's node, and the functions of a
    `reduce`, but no names of nodes. Aggregates, windows and keys are left out, as no upgrade keeps a store if they change.
    """
    return {spec.name: _hash(_computation(whole, node)) for whole, node, spec in _stores(plan)}


def source_sql(plan: TopologyPlan) -> dict[str, str]:
    """Return a hash of all SQL that Spark runs over the records of a store's sources, by store.

    A record for which any of it raises becomes a dead letter and reaches no store, whichever path the SQL is of.
    """
    return {spec.name: _hash(_sql(whole, node)) for whole, node, spec in _stores(plan)}


def _stores(plan: TopologyPlan) -> Iterator[tuple[SubTopology, Aggregation | TaskNode, StoreSpec]]:
    for subtopology in plan.subtopologies:
        nodes: tuple[Aggregation | TaskNode, ...] = (*subtopology.aggregations, *subtopology.nodes)
        yield from ((subtopology, node, spec) for node in nodes for spec in node.stores)


def _hash(form: object) -> str:
    text = json.dumps(form, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def _computation(subtopology: SubTopology, node: Aggregation | TaskNode) -> list[object]:
    functions = [node.function, node.initializer] if isinstance(node, Reduce) else []
    return [functions, [_path(subtopology, pipeline) for pipeline in _pipelines(subtopology, node)]]


def _sql(subtopology: SubTopology, node: Aggregation | TaskNode) -> list[str]:
    """Return each different list of expressions that is applied to records of the node's sources, in a fixed order."""
    sources = {pipeline.source for pipeline in _pipelines(subtopology, node)}
    paths = (pipeline for pipeline in subtopology.pipelines if pipeline.source in sources)
    return sorted({json.dumps(own) for own in map(_expressions, paths) if own})


def _expressions(pipeline: Pipeline) -> list[object]:
    aggregates = pipeline.aggregation.aggregates if pipeline.aggregation else ()
    return _steps(pipeline) + [each.call for each in aggregates if each.expression is not None]


def _steps(pipeline: Pipeline) -> list[object]:
    """Return the steps of a pipeline without the names of their nodes, which decide nothing."""
    return [[type(step).__name__, {**asdict(step), "node": ""}] for step in pipeline.steps]


def _pipelines(subtopology: SubTopology, node: Aggregation | TaskNode) -> Sequence[Pipeline]:
    if isinstance(node, Aggregation):
        return [pipeline for pipeline in subtopology.pipelines if pipeline.aggregation == node]
    return [pipeline for pipeline in subtopology.pipelines if pipeline.enters and pipeline.end in node.inputs]


def _path(subtopology: SubTopology, pipeline: Pipeline) -> list[object]:
    source = subtopology.sources[pipeline.source]
    columns = [[column.name, column.type] for column in source.schema]
    # JSON is left out, so that a store of JSON records keeps the hash that was recorded before there were other serdes.
    value_serde = [] if source.value_serde is ValueSerde.JSON else [source.value_serde.value]
    return [columns, source.key, source.timestamp, source.key_serde.value, *value_serde, _steps(pipeline)]
