"""Effect of `optimised=True` on a topology: repartition topics that are merged, and changelogs that are no longer needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.names import changelog_topic
from tidemark.topology.plan import Map, Rekey, RowSink, StoreSpec, TableSource, TopologyPlan

_NUMBERED = re.compile(r"-(?:KSTREAM|KTABLE)-[A-Z-]*(\d{10})")


@dataclass(frozen=True)
class PlanDifference:
    """The change from the plan without optimisation to the plan with it. Topics are given by name.

    `merged`: a repartition topic, and the one that takes its records. `saved`: a changelog, and the table's topic that
    replaces it. `renamed` (old, new): topics of unnamed stores and repartitions, whose numbers change.
    """

    merged: tuple[tuple[str, str], ...]
    saved: tuple[tuple[str, str], ...]
    renamed: tuple[tuple[str, str], ...]

    @property
    def is_empty(self) -> bool:
        """True if optimisation changes nothing."""
        return not (self.merged or self.saved)


def difference(plain: TopologyPlan, optimised: TopologyPlan) -> PlanDifference:
    """Compare the two plans of one topology."""
    merged = dict(_merged(plain))
    saved = dict(_saved(plain, optimised))
    old = _numbered(topic for topic in _internal(plain) if topic not in merged and topic not in saved)
    renamed = tuple((was, now) for was, now in zip(old, _numbered(_internal(optimised)), strict=False) if was != now)
    return PlanDifference(tuple(merged.items()), tuple(saved.items()), renamed)


def _merged(plain: TopologyPlan) -> Iterator[tuple[str, str]]:
    """Yield repartitions of the same records by the same key, as `Stream.repartition` finds them when it optimises."""
    first: dict[object, str] = {}
    taken: dict[str, str] = {}
    for what, topic in _repartitions(plain, taken):
        same = first.setdefault(what, topic)
        if same != topic:
            taken[topic] = same
            yield topic, same


def _repartitions(plain: TopologyPlan, taken: dict[str, str]) -> Iterator[tuple[object, str]]:
    """Yield each repartition topic with its origin: the records' source and the key. Sees `taken` change meanwhile."""
    for subtopology in plain.subtopologies:
        for pipeline in subtopology.pipelines:
            source = subtopology.sources[pipeline.source]
            *before, last = pipeline.steps or (None,)
            for sink in pipeline.sinks:
                if sink.is_repartition and isinstance(last, Rekey):
                    origin = taken.get(source.topic, source.topic)
                    yield (origin, tuple(before), last.key), sink.topic
        keys = {node.node: node for node in subtopology.nodes if isinstance(node, Map)}
        for node in subtopology.nodes:
            if isinstance(node, RowSink) and node.sink.is_repartition:
                rekey = keys[node.inputs[0]]
                yield (rekey.inputs, rekey.key), node.sink.topic


def _saved(plain: TopologyPlan, optimised: TopologyPlan) -> Iterator[tuple[str, str]]:
    names = _table_stores(plain)
    for topic, store in _table_stores(optimised).items():
        if store.source_topic is not None:
            yield changelog_topic(plain.application_id, names[topic].name), topic


def _table_stores(plan: TopologyPlan) -> dict[str, StoreSpec]:
    """Return the store of each table that is read from a topic, by that topic."""
    sources = {source.node: source.topic for s in plan.subtopologies for source in s.sources}
    return {
        sources[node.inputs[0]]: node.stores[0]
        for s in plan.subtopologies
        for node in s.nodes
        if isinstance(node, TableSource) and node.inputs[0] in sources
    }


def _numbered(topics: Iterable[str]) -> list[str]:
    """Return the topics named by a node's number, in the order in which they were written, which both plans share."""
    found = [(numbered[1], topic) for topic in topics if (numbered := _NUMBERED.search(topic))]
    return [topic for _, topic in sorted(found)]


def _internal(plan: TopologyPlan) -> list[str]:
    """Return repartition topics and changelogs."""
    stores = [s for s in plan.stores if s.has_changelog]
    return [*plan.repartition_topics, *(changelog_topic(plan.application_id, store.name) for store in stores)]
