"""The description of an application's state: the part of a plan that its stores' bytes depend on, kept in `<app>-topology`.

Commit records name a version of the topology, but the module of that version no longer exists once it is edited. So the
first commit of an instance that finds another description than its own writes its own in the same transaction: the last
record of the topic describes the state that the last commits wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tidemark.errors import StartRefused
from tidemark.registry.computations import CHANGED, UNRECORDED, computations, source_sql
from tidemark.registry.kept_history import KeptHistory
from tidemark.registry.routing import routed_topic
from tidemark.registry.store_roles import key_of_nodes, key_of_pipeline, keys_in, role_of, window_of, window_text
from tidemark.topology.plan import (
    Aggregate,
    Aggregation,
    Column,
    Fold,
    Guarantee,
    Number,
    Pipeline,
    Source,
    StoreKind,
    StoreSpec,
    SubTopology,
    TaskNode,
    TopologyPlan,
)

DESCRIPTION_VERSION = 2


@dataclass(frozen=True)
class StoreState:
    """The description of one store. `spec` is written as if RocksDB held the store.

    `role` is what the store is used for by its node, `key` the SQL that its keys are made of, `window` its windows as
    text, or empty. `aggregates` are empty for a store of rows.
    """

    spec: StoreSpec
    role: str
    key: str
    window: str
    aggregates: tuple[Aggregate, ...]

    @property
    def name(self) -> str:
        """The name of the store."""
        return self.spec.name

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a value, by name: a column's type, or what an aggregate folds.

        A quantile's rank and a collect's limit are left out, because they do not change what is stored.
        """
        if self.aggregates:
            return {a.name: f"{a.fold.value}({' '.join((a.expression or '*').split())})" for a in self.aggregates}
        return {column.name: column.type for column in self.spec.columns}


@dataclass(frozen=True)
class SubtopologyState:
    """One sub-topology: the topics it reads, the lead topic first, and its stores."""

    sources: tuple[str, ...]
    stores: tuple[StoreState, ...]


@dataclass(frozen=True)
class Description:
    """The description of a whole application, with the names of its module.

    `partitions` are those of the user's topics it reads. `internal` are the topics between its sub-topologies. `columns` are
    the types of the columns that it reads from each of its sources, by topic and name.
    `routing` counts rescales; it is 0 if each task reads a partition of the user's topics, and part of the names of the
    topics through which the sources are routed. `topic_ids` are the ids that Kafka gave the topics it reads and writes,
    by the names in use; empty until its first commit. `generations` are the highest generations of all stores that the
    application has ever had, by name, so that no changelog's name is used again after the topic was deleted. `computations`
    are hashes of how the stores are computed, by name, and `source_sql` are those of all SQL that runs over the records of
    their sources. `not_recomputable` says of stores why today's topology, applied to all records of their sources, would not
    give what they rightly hold. `kept_history` says, by changelog, how far back compaction has left its history; a changelog
    that no start of an instance has seen yet is not in it.
    """

    application_id: str
    version: str
    guarantee: Guarantee
    subtopologies: tuple[SubtopologyState, ...]
    partitions: Mapping[str, int]
    internal: tuple[str, ...] = ()
    routing: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    computations: Mapping[str, str] = field(default_factory=dict)
    source_sql: Mapping[str, str] = field(default_factory=dict)
    not_recomputable: Mapping[str, str] = field(default_factory=dict)
    kept_history: Mapping[str, KeptHistory] = field(default_factory=dict)

    @property
    def stores(self) -> dict[str, StoreState]:
        """All stores, by name."""
        return {store.name: store for s in self.subtopologies for store in s.stores}

    def last_generation(self, store: str) -> int | None:
        """Return the highest generation that a store of this name has had; None if there was none."""
        own = [self.stores[store].spec.generation] if store in self.stores else []
        own += [self.generations[store]] if store in self.generations else []
        return max(own, default=None)

    def subtopology_of(self, store: str) -> int:
        """Return the sub-topology that the store belongs to."""
        return next(i for i, s in enumerate(self.subtopologies) if any(each.name == store for each in s.stores))

    def keys_of(self, store: str) -> tuple[str, ...] | dict[str, str]:
        """Return the expressions that the keys of the store are made of, by source if each source has its own.

        Otherwise they are in the order of the sources, because it is not known which sources have the same expression.
        """
        sources, keys = self.subtopologies[self.subtopology_of(store)].sources, keys_in(self.stores[store].key)
        return dict(zip(sources, keys, strict=True)) if len(keys) == len(sources) else keys

    def continuing(self, before: Description) -> Description:
        """Return this description as the one that follows `before`, with what `before` knows of the application's past."""
        names = {*before.generations, *self.generations}
        highest = {name: max(each.generations.get(name, 0) for each in (before, self)) for name in names}
        reasons = before.not_recomputable_by(self.computations, self.source_sql)
        return replace(
            self,
            routing=before.routing,
            generations=highest,
            not_recomputable=reasons,
            kept_history=before.kept_history,
        )

    def not_recomputable_by(self, computed: Mapping[str, str], sql: Mapping[str, str]) -> dict[str, str]:
        """Return why the stores of a topology cannot be computed again by it, by store.

        `computed` and `sql` are its `computations` and its `source_sql`.
        """
        unrecorded = {name: UNRECORDED for name in self.stores if name not in self.computations}
        hashes = [(self.computations, computed), (self.source_sql, sql)]
        changed = {name: CHANGED for own, other in hashes for name in own if other.get(name) != own[name]}
        reasons = {**unrecorded, **changed, **self.not_recomputable}
        return {name: reason for name, reason in reasons.items() if name in computed}

    def keeps_the_same(self, other: Description) -> bool:
        """Whether both describe the same state, apart from the version, the guarantee, the generations and topic ids."""
        return self._forms == other._forms

    @property
    def _forms(self) -> tuple[SubtopologyState, ...]:
        return tuple(
            replace(s, stores=tuple(replace(each, spec=_form(each.spec)) for each in s.stores))
            for s in self.subtopologies
        )

    def to_bytes(self) -> bytes:
        """Return the description as JSON."""
        body = {"format": DESCRIPTION_VERSION, **asdict(self)}
        return json.dumps(body, separators=(",", ":"), default=lambda member: member.value).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Description:
        """Read what `to_bytes` wrote. Raises `StartRefused` for another format."""
        body = json.loads(data)
        found = body.pop("format", None)
        if found == 1:
            raise StartRefused(
                "a topology's description was written by a version of Tidemark that did not keep the ids of topics, "
                "so it is not known whether they are still the same: continue with that version, or give the topology "
                "another application id to process its sources from the start"
            )
        if found != DESCRIPTION_VERSION:
            raise StartRefused(
                f"a topology's description has format {found}, but this Tidemark reads {DESCRIPTION_VERSION}: upgrade Tidemark"
            )
        body["guarantee"] = Guarantee(body["guarantee"])
        body["subtopologies"] = tuple(
            SubtopologyState(tuple(s["sources"]), tuple(_store(each) for each in s["stores"]))
            for s in body["subtopologies"]
        )
        body["internal"] = tuple(body["internal"])
        body["kept_history"] = {t: KeptHistory(**each) for t, each in body.get("kept_history", {}).items()}
        return cls(**body)

    def routed_topic(self, topic: str) -> str:
        """Return the topic that is read in place of one that the module names."""
        return routed_topic(self.application_id, topic, self.routing, is_internal=topic in self.internal)

    @property
    def user_topics(self) -> tuple[str, ...]:
        """The source topics that are not internal."""
        return tuple(t for s in self.subtopologies for t in s.sources if t not in self.internal)

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The topics that the application itself writes and reads again: those between sub-topologies, and those of routers.

        They have the names of the module: a routed topic that of the user.
        """
        return (*self.internal, *(self.user_topics if self.routing else ()))

    def skeleton(self) -> TopologyPlan:
        """Return a plan that has only sources and stores: enough to find and read the state, not to run."""
        states = [
            replace(s, sources=tuple(self.routed_topic(topic) for topic in s.sources)) for s in self.subtopologies
        ]
        routed = self.user_topics if self.routing else ()
        states += [SubtopologyState((topic,), ()) for topic in routed]
        subtopologies = tuple(_skeleton(index, s) for index, s in enumerate(states))
        return TopologyPlan(self.application_id, self.version, self.guarantee, subtopologies, routed)


def describe_state(plan: TopologyPlan, partitions: Mapping[str, int]) -> Description:
    """Return the description of a module's plan that was never rescaled. Of `partitions`, the user's own topics are kept."""
    internal = plan.repartition_topics
    return Description(
        plan.application_id,
        plan.version,
        plan.guarantee,
        tuple(SubtopologyState(s.source_topics, tuple(_states(plan, s))) for s in plan.subtopologies),
        {
            t: partitions[t]
            for s in plan.subtopologies
            for t in s.source_topics
            if t in partitions and t not in internal
        },
        internal,
        columns={
            source.topic: {column.name: column.type for column in source.schema}
            for s in plan.subtopologies
            for source in s.sources
        },
        generations={spec.name: spec.generation for spec in plan.stores},
        computations=computations(plan),
        source_sql=source_sql(plan),
    )


def with_generations(plan: TopologyPlan, generations: Mapping[str, int]) -> TopologyPlan:
    """Return the plan with the present changelog of each store. A store that is not in `generations` has none yet."""

    def settled(spec: StoreSpec) -> StoreSpec:
        return replace(spec, generation=generations.get(spec.name, spec.generation))

    def pipeline(given: Pipeline) -> Pipeline:
        aggregation = given.aggregation
        if aggregation is None:
            return given
        return replace(given, aggregation=replace(aggregation, store=settled(aggregation.store)))

    subtopologies = tuple(
        replace(
            s,
            pipelines=tuple(map(pipeline, s.pipelines)),
            nodes=tuple(replace(node, stores=tuple(map(settled, node.stores))) for node in s.nodes),
        )
        for s in plan.subtopologies
    )
    return replace(plan, subtopologies=subtopologies)


def _states(plan: TopologyPlan, subtopology: SubTopology) -> Iterable[StoreState]:
    for pipeline in subtopology.pipelines:
        aggregation = pipeline.aggregation
        if aggregation is not None:
            yield StoreState(
                _bare(aggregation.store), "aggregate", key_of_pipeline(plan, subtopology, pipeline),
                window_text(aggregation.window), aggregation.aggregates,
            )  # fmt: skip
    key = key_of_nodes(plan, subtopology)
    for node in subtopology.nodes:
        for place, spec in enumerate(node.stores):
            yield StoreState(_bare(spec), role_of(node, place), key, window_of(subtopology, node), ())


def _bare(spec: StoreSpec) -> StoreSpec:
    """Return the spec without what may change at any time: the kind of store, and whether queries may read it."""
    return replace(spec, in_memory=False, custom=None, private=False)


def _form(spec: StoreSpec) -> StoreSpec:
    """Return the spec without what does not affect contents: the settings of the changelog, and how often it was rewritten."""
    return replace(spec, profile="default", topic_config=(), generation=0)


def _store(body: dict[str, Any]) -> StoreState:
    spec = body["spec"]
    spec["kind"] = StoreKind(spec["kind"])
    spec["columns"] = tuple(Column(**column) for column in spec["columns"])
    spec["topic_config"] = tuple((key, value) for key, value in spec["topic_config"])
    aggregates = tuple(
        Aggregate(each["name"], Fold(each["fold"]), each["expression"], Number(each["number"]), each["argument"])
        for each in body["aggregates"]
    )
    return StoreState(StoreSpec(**spec), body["role"], body["key"], body["window"], aggregates)


def _skeleton(index: int, state: SubtopologyState) -> SubTopology:
    sources = tuple(Source(f"source-{i}", topic, (), "_key", "_timestamp") for i, topic in enumerate(state.sources))
    pipelines = tuple(
        Pipeline(0, store.name, (), (), Aggregation(store.name, store.spec, None, "key", store.aggregates, ()), ())
        for store in state.stores
        if store.aggregates
    )
    rows = tuple(store.spec for store in state.stores if not store.aggregates)
    return SubTopology(index, sources, pipelines, (TaskNode("stores", (), (), rows),) if rows else ())
