"""Finds the nodes that need a record's key, and the nodes to which a pipeline leads.

A record may have no key (KIP-962), or another key than `key=` gives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import (
    JoinKind,
    Map,
    Pipeline,
    Process,
    Reduce,
    Rekey,
    RowSink,
    StreamStreamJoin,
    StreamTableJoin,
    SubTopology,
    TableSource,
    TaskNode,
)
from tidemark.topology.schema import KEY


def needs_key(subtopology: SubTopology, pipeline: Pipeline) -> bool:
    """Return whether a node of the pipeline cannot use a record without a key; such a record is then a dead letter."""
    return pipeline.aggregation is not None or any(needs_key_of(*taker) for taker in _takers(subtopology, pipeline))


def takes_keyless(subtopology: SubTopology, pipeline: Pipeline) -> bool:
    """Return whether a record without a key has an effect: in a sink, processor or outer join, or on a join's stream time."""
    return bool(pipeline.sinks) or any(
        isinstance(node, StreamStreamJoin) or not needs_key_of(node, side)
        for node, side in _takers(subtopology, pipeline)
    )


def needs_key_of(node: TaskNode, side: int) -> bool:
    """Return whether a node cannot use a row without a key on its input `side`."""
    if isinstance(node, StreamStreamJoin):
        return node.kind is JoinKind.INNER or (node.kind is JoinKind.LEFT and side == 1)
    if isinstance(node, StreamTableJoin):
        return node.kind is JoinKind.INNER and side == 0
    return isinstance(node, TableSource | Reduce)


def relies_on_key(subtopology: SubTopology, pipeline: Pipeline) -> bool:
    """Return whether a node downstream of the pipeline keeps or looks up state by the keys of the records.

    The state of a key is in the task of that Kafka key: under a key of another text, each task would keep a part of it.
    """
    return pipeline.aggregation is not None or any(_keeps_by_key(node) for node, _ in _takers(subtopology, pipeline))


def _keeps_by_key(node: TaskNode) -> bool:
    if isinstance(node, Process):
        # A processor promises to keep keys because state is downstream of it.
        return bool(node.stores) or node.keeps_key
    return not isinstance(node, Map | RowSink)


def with_checked_keys(subtopologies: Sequence[SubTopology]) -> tuple[SubTopology, ...]:
    """Let the sources compare keys if a node downstream relies on them, and return the result."""
    return tuple(
        replace(
            subtopology,
            sources=tuple(
                replace(source, checks_key=source.key != KEY.name and _is_relied_on(subtopology, number))
                for number, source in enumerate(subtopology.sources)
            ),
        )
        for subtopology in subtopologies
    )


def _is_relied_on(subtopology: SubTopology, source: int) -> bool:
    return any(pipeline.source == source and relies_on_key(subtopology, pipeline) for pipeline in subtopology.pipelines)


def with_null_keys(subtopologies: Sequence[SubTopology]) -> tuple[SubTopology, ...]:
    """Let repartitions keep null keys if a left or outer join of streams is downstream, and return the result (KIP-962).

    Kafka Streams applies the same rule to its graph (`NodesWithRelaxedNullKeyJoinDownstream`), whatever is in between.
    """
    kept: set[str] = set()
    while found := {topic for s in subtopologies for topic in _leading_to_relaxed_joins(s, kept)} - kept:
        kept |= found
    return tuple(_keeping(subtopology, kept) for subtopology in subtopologies)


def _leading_to_relaxed_joins(subtopology: SubTopology, kept: Collection[str]) -> Iterator[str]:
    """Yield the sources from which a left or outer join can be reached, directly or through the topics in `kept`."""
    paths = RecordPaths(subtopology)
    found = {
        pipeline.source for pipeline in subtopology.pipelines if any(sink.topic in kept for sink in pipeline.sinks)
    }
    for node in subtopology.nodes:
        is_relaxed = isinstance(node, StreamStreamJoin | StreamTableJoin) and node.kind is not JoinKind.INNER
        if is_relaxed or (isinstance(node, RowSink) and node.sink.topic in kept):
            found |= paths.sources(node.node)
    return (subtopology.sources[number].topic for number in found)


def _keeping(subtopology: SubTopology, kept: Collection[str]) -> SubTopology:
    pipelines = tuple(
        replace(
            pipeline,
            steps=tuple(replace(s, keeps_null_keys=True) if isinstance(s, Rekey) else s for s in pipeline.steps),
        )
        if any(sink.is_repartition and sink.topic in kept for sink in pipeline.sinks)
        else pipeline
        for pipeline in subtopology.pipelines
    )
    keyed = {
        node.inputs[0]
        for node in subtopology.nodes
        if isinstance(node, RowSink) and node.sink.is_repartition and node.sink.topic in kept
    }
    nodes = tuple(
        replace(node, keeps_null_keys=True) if isinstance(node, Map) and node.node in keyed else node
        for node in subtopology.nodes
    )
    return replace(subtopology, pipelines=pipelines, nodes=nodes)


def _takers(subtopology: SubTopology, pipeline: Pipeline) -> Iterator[tuple[TaskNode, int]]:
    """Yield the nodes that take the pipeline's rows, after filters and selects, and the input at which they do."""
    names = {pipeline.end} if pipeline.enters else set()
    for node in subtopology.nodes:
        for side, name in enumerate(node.inputs):
            if name not in names:
                continue
            if isinstance(node, Map) and node.key is None:
                names.add(node.node)
            else:
                yield node, side
