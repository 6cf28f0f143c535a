"""The plan of a rescaled application: its sources go through repartition topics with as many partitions as tasks.

Each topic of the user that the topology reads gets a router: a stateless sub-topology after all others, with one task
per partition of the topic, which sends each record by murmur2 of its key, and a record without a key to any partition.
The sub-topologies that read the user's topic read the router's topic instead. The topics between sub-topologies also
get another name with each rescale, because Kafka cannot remove partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tidemark.errors import StartRefused
from tidemark.names import repartition_topic
from tidemark.topology.plan import (
    Pipeline,
    RowSink,
    Sink,
    Source,
    SubTopology,
    TaskNode,
    TopologyPlan,
)
from tidemark.topology.schema import KEY, RESERVED, TIMESTAMP
from tidemark.topology.sql.expressions import columns_in

_SUFFIX = "-repartition"


_LOST = frozenset(column.name for column in RESERVED if column != KEY)


def routed(plan: TopologyPlan, generation: int) -> TopologyPlan:
    """Return the plan as it runs after that many rescales. `plan` is the topology module's."""
    app, internal = plan.application_id, set(plan.repartition_topics)

    def name(topic: str) -> str:
        return routed_topic(app, topic, generation, is_internal=topic in internal)

    def source(given: Source) -> Source:
        if given.topic in internal:
            return replace(given, topic=name(given.topic))
        return Source(given.node, name(given.topic), given.schema, KEY.name, TIMESTAMP.name, given.is_table)

    def sink(given: Sink) -> Sink:
        return replace(given, topic=name(given.topic)) if given.is_repartition else given

    def pipeline(given: Pipeline) -> Pipeline:
        return replace(given, sinks=tuple(map(sink, given.sinks)))

    def node(given: TaskNode) -> TaskNode:
        return replace(given, sink=sink(given.sink)) if isinstance(given, RowSink) else given

    subtopologies = [
        replace(
            s,
            sources=tuple(map(source, s.sources)),
            pipelines=tuple(map(pipeline, s.pipelines)),
            nodes=tuple(map(node, s.nodes)),
        )
        for s in plan.subtopologies
    ]
    users = [each for s in plan.subtopologies for each in s.sources if each.topic not in internal]
    routers = [_router(len(subtopologies) + i, each, name(each.topic)) for i, each in enumerate(users)]
    return replace(plan, subtopologies=(*subtopologies, *routers), routed=tuple(each.topic for each in users))


def routed_topic(application_id: str, topic: str, generation: int, *, is_internal: bool) -> str:
    """Return the topic that replaces another one after that many rescales; 0 means none yet."""
    if not generation:
        return topic
    name = topic.removeprefix(f"{application_id}-").removesuffix(_SUFFIX) if is_internal else f"source-{topic}"
    return repartition_topic(application_id, f"{name}-{generation}")


def next_routing(application_id: str, topics: Iterable[str], existing: Collection[str], recorded: int) -> int:
    """Return the first number after `recorded` for which no topic exists.

    `topics` are the module's names of those between sub-topologies.
    """
    generation = recorded + 1
    prefix = f"{application_id}-source-"
    names = {topic.removesuffix(_SUFFIX) for topic in topics}
    while any(
        topic.endswith(f"-{generation}{_SUFFIX}")
        and (topic.startswith(prefix) or topic.removesuffix(f"-{generation}{_SUFFIX}") in names)
        for topic in existing
    ):
        generation += 1
    return generation


def unroutable(plan: TopologyPlan) -> list[str]:
    """Return why a routed record would be processed differently from one that was read directly from its topic.

    `plan` is the topology module's. Empty if there is no difference.
    """
    found: list[str] = []
    for subtopology in plan.subtopologies:
        for pipeline in subtopology.pipelines:
            source = subtopology.sources[pipeline.source]
            if source.topic in plan.repartition_topics:
                continue
            for text in _expressions(pipeline):
                used = columns_in(text)
                if lost := sorted(_LOST & used):
                    found.append(
                        f"{pipeline.end} uses {', '.join(lost)} ({text}), which a record loses when it goes through a "
                        "repartition topic; leave it out, or let the producer write it into the record"
                    )
                # A source that compares keys has only records whose own key is that of `key=`.
                elif source.key != KEY.name and not source.checks_key and KEY.name in used:
                    found.append(
                        f"{pipeline.end} uses _key ({text}), but a record that goes through a repartition topic has the key "
                        f"{source.key} there; use {source.key} instead"
                    )
    return found


def require_routable(plan: TopologyPlan) -> None:
    """Raise `StartRefused` if a routed record would be processed differently from one that was read directly from its topic."""
    if against := unroutable(plan):
        raise StartRefused(
            f"{plan.application_id}: its sources cannot be routed through repartition topics, as a rescale requires: "
            f"{' | '.join(against)}"
        )


def _expressions(pipeline: Pipeline) -> Sequence[str]:
    texts: list[str] = []
    for step in pipeline.steps:
        columns = getattr(step, "columns", ())
        texts += [expression for _, expression in columns]
        texts += [text for text in (getattr(step, "condition", None), getattr(step, "key", None)) if text]
    if pipeline.aggregation is not None:
        texts += [a.expression for a in pipeline.aggregation.aggregates if a.expression is not None]
    return texts


def _router(index: int, source: Source, topic: str) -> SubTopology:
    node = f"ROUTE-{source.node}"
    sink = Sink(f"{node}-SINK", topic, is_repartition=True)
    return SubTopology(index, (source,), (Pipeline(0, source.node, (), source.schema, None, (sink,)),))
