"""Finds the results that the audit can compute again from the topology alone, and the reason for all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import (
    Aggregation,
    Fold,
    Map,
    Pipeline,
    Process,
    RowSink,
    SubTopology,
    Suppress,
    TaskNode,
    TopologyPlan,
    WhenFull,
    Window,
)
from tidemark.topology.schema import KEY

_FOLDS = frozenset([Fold.COUNT, Fold.SUM, Fold.MIN, Fold.MAX, Fold.MEAN])
_RISING, _FALLING = frozenset([Fold.COUNT, Fold.MAX]), frozenset([Fold.MIN])


@dataclass(frozen=True)
class Derived:
    """An aggregation whose results can be computed again. `number` is that of its pipeline.

    `changelog` is None for a store without one. `update_sinks` receive every update, `final_sinks` one final result per
    window, which closes by the stream time of `final_store`, that of the suppress node.
    """

    subtopology: SubTopology
    number: int
    pipeline: Pipeline
    aggregation: Aggregation
    changelog: str | None
    update_sinks: tuple[str, ...]
    final_sinks: tuple[str, ...]
    final_store: str | None

    @property
    def name(self) -> str:
        """Return a name for views and files."""
        return f"{self.subtopology.index}_{self.number}"

    @property
    def rising(self) -> tuple[str, ...]:
        """Return the results that never become smaller as records come."""
        return tuple(a.name for a in self.aggregation.aggregates if a.fold in _RISING)

    @property
    def falling(self) -> tuple[str, ...]:
        """Return the results that never become larger as records come."""
        return tuple(a.name for a in self.aggregation.aggregates if a.fold in _FALLING)


@dataclass(frozen=True)
class NotDerived:
    """A topic whose contents cannot be computed again, and why."""

    topic: str
    reason: str


@dataclass(frozen=True)
class Derivable:
    """The results of one application. `late_rows` are the sub-topologies whose late rows can be counted again."""

    derived: tuple[Derived, ...]
    not_derived: tuple[NotDerived, ...]
    late_rows: frozenset[int]


def derivable(plan: TopologyPlan) -> Derivable:
    """Return what can be computed again of a topology's sinks and changelogs."""
    derived: list[Derived] = []
    reasons: dict[str, str] = {}
    late_rows = set()
    writers = Counter(topic for s in plan.subtopologies for topic in [sink.topic for sink in s.sinks])
    read = read_again(plan)
    for subtopology in plan.subtopologies:
        purged = next((s.topic for s in subtopology.sources if s.topic in plan.repartition_topics), None)
        found = [] if purged else list(_of(plan, subtopology, writers))
        derived += found
        known = {t for d in found for t in (*d.update_sinks, *d.final_sinks, d.changelog)}
        why = (
            f"its records come through {purged}, which is purged"
            if purged
            else "it is not the result of a plain aggregation"
        )
        logged = [changelog_of(plan.application_id, store) for store in subtopology.stores if store.has_changelog]
        for topic in (*subtopology.sink_topics, *logged):
            if topic not in known:
                reasons.setdefault(topic, why if purged else _why(subtopology, topic, writers, read) or why)
        only_aggregates = all(
            pipeline.aggregation is not None or not pipeline.enters for pipeline in subtopology.pipelines
        )
        if not purged and only_aggregates and len(found) == len(subtopology.aggregations):
            late_rows.add(subtopology.index)
    not_derived = tuple(NotDerived(topic, reason) for topic, reason in reasons.items())
    return Derivable(tuple(derived), not_derived, frozenset(late_rows))


def read_again(plan: TopologyPlan) -> frozenset[str]:
    """Return the topics that the application both writes and reads; the audit treats them only as sources."""
    sources = {topic for s in plan.subtopologies for topic in s.source_topics} - set(plan.repartition_topics)
    return frozenset(topic for s in plan.subtopologies for topic in s.sink_topics if topic in sources)


def _why(subtopology: SubTopology, topic: str, writers: Counter[str], read: frozenset[str]) -> str | None:
    if topic in read:
        return "the application also reads it"
    if writers[topic] > 1:
        return "several nodes write it"
    ends = [node for node in subtopology.nodes if isinstance(node, RowSink) and node.sink.topic == topic]
    if not ends:
        return None
    before = _node(subtopology, ends[0].inputs[0])
    return f"its records come from a {type(before).__name__}" if before is not None else None


def _node(subtopology: SubTopology, name: str) -> TaskNode | Aggregation | None:
    nodes: tuple[TaskNode | Aggregation, ...] = (*subtopology.nodes, *subtopology.aggregations)
    return next((node for node in nodes if node.node == name), None)


def _of(plan: TopologyPlan, subtopology: SubTopology, writers: Counter[str]) -> Iterator[Derived]:
    compared = frozenset(topic for topic, count in writers.items() if count == 1) - read_again(plan)
    for number, pipeline in enumerate(subtopology.pipelines):
        aggregation = pipeline.aggregation
        if aggregation is None or not isinstance(aggregation.window, Window | None):
            continue
        if any(aggregate.fold not in _FOLDS for aggregate in aggregation.aggregates):
            continue
        finals = [
            node
            for node in subtopology.nodes
            if isinstance(node, Suppress)
            and node.inputs == (aggregation.node,)
            and node.when_full is not WhenFull.EMIT_EARLY
        ]
        logged = aggregation.store.is_logged
        yield Derived(
            subtopology,
            number,
            pipeline,
            aggregation,
            changelog_of(plan.application_id, aggregation.store) if logged else None,
            _sinks_behind(subtopology, {aggregation.node}, compared),
            _sinks_behind(subtopology, {node.node for node in finals}, compared),
            finals[0].stores[0].name if finals else None,
        )


def _sinks_behind(subtopology: SubTopology, nodes: set[str], compared: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        node.sink.topic
        for node in subtopology.nodes
        if isinstance(node, RowSink)
        and set(node.inputs) <= nodes
        and node.sink.topic in compared
        and not node.sink.is_repartition
    )


def keyed_sinks(subtopology: SubTopology) -> frozenset[str]:
    """Return the sink topics whose records carry the key that determines their task (see invariant: audit ranges).

    Sinks fed straight by a source do not, if the source has a `key` that it does not compare with the Kafka key. Nodes
    downstream of such a source forward under other keys in any case: all others make the source compare.
    """
    rekeyed = {
        node.node
        for node in subtopology.nodes
        if (isinstance(node, Process) and not node.keeps_key) or (isinstance(node, Map) and node.key)
    }
    for node in subtopology.nodes:
        if set(node.inputs) & rekeyed:
            rekeyed.add(node.node)
    away = {node.sink.topic for node in subtopology.nodes if isinstance(node, RowSink) and node.node in rekeyed}
    for pipeline in subtopology.pipelines:
        source = subtopology.sources[pipeline.source]
        if source.key != KEY.name and not source.checks_key:
            away |= {sink.topic for sink in pipeline.sinks}
    away |= {sink.topic for sink in subtopology.sinks if sink.is_repartition}
    return frozenset(subtopology.sink_topics) - away
