"""A plan as text, as Kafka Streams' `TopologyDescription` plus where nodes run and what stores keep; and the same as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidemark.names import changelog_topic
from tidemark.topology.durations import format_ms
from tidemark.topology.plan import (
    Aggregation,
    RowSink,
    SessionWindow,
    SlidingWindow,
    StoreSpec,
    StreamTableJoin,
    SubTopology,
    TableTableJoin,
    TaskNode,
    TopologyPlan,
)
from tidemark.topology.stores import AnyWindow

SPARK = "Spark"
TASK_LOOP = "task loop"
BOTH = "Spark: partial results, task loop: merge and store"

SOURCE, PROCESSOR, SINK = "source", "processor", "sink"


@dataclass
class _Node:
    """A node. `topic` is that of a source or a sink, `stores` are those that a processor keeps or reads."""

    name: str
    runs: str
    kind: str
    topic: str | None = None
    stores: tuple[str, ...] = ()
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """The first line of a node, as Kafka Streams prints it."""
        if self.kind == SOURCE:
            return f"Source: {self.name} (topics: [{self.topic}])"
        if self.kind == SINK:
            return f"Sink: {self.name} (topic: {self.topic})"
        return f"Processor: {self.name} (stores: [{', '.join(self.stores)}])"


def describe(plan: TopologyPlan) -> str:
    """Return several lines without a newline at the end. The same plan always gives the same text."""
    brokers = "1 broker" if plan.tolerated_broker_failures == 1 else f"{plan.tolerated_broker_failures} brokers"
    tolerated_broker_failures = f", survives the loss of {brokers}" if plan.tolerated_broker_failures else ""
    standbys = "1 standby" if plan.num_standby_replicas == 1 else f"{plan.num_standby_replicas} standbys"
    promises = f"{plan.guarantee.value}, acks={plan.acks.value}{tolerated_broker_failures}"
    promises += f", {standbys}" if plan.num_standby_replicas else ""
    lines = [
        f"Application: {plan.application_id} (version {plan.version}, {promises})",
        "Topologies:",
    ]
    for subtopology in plan.subtopologies:
        lines.append(f"   Sub-topology: {subtopology.index}")
        for node in _nodes(subtopology).values():
            lines.append(f"    {node.head} [{node.runs}]")
            if node.kind != SINK:
                lines.append(f"      --> {', '.join(node.after) or 'none'}")
            if node.kind != SOURCE:
                lines.append(f"      <-- {', '.join(node.before)}")
        lines.append("")
    if plan.stores:
        lines.append("Stores:")
        for subtopology in plan.subtopologies:
            aggregations = {a.store.name: a for a in subtopology.aggregations}
            for store in subtopology.stores:
                lines += _store_lines(plan.application_id, store, aggregations.get(store.name))
    return "\n".join(lines).rstrip("\n")


def describe_as_data(plan: TopologyPlan) -> dict[str, Any]:
    """Return what `describe` prints of nodes and stores, as JSON types."""
    return {
        "application_id": plan.application_id,
        "version": plan.version,
        "guarantee": plan.guarantee.value,
        "acks": plan.acks.value,
        "tolerated_broker_failures": plan.tolerated_broker_failures,
        "num_standby_replicas": plan.num_standby_replicas,
        "subtopologies": [
            {
                "index": subtopology.index,
                "nodes": [
                    {
                        "name": node.name,
                        "kind": node.kind,
                        "runs": node.runs,
                        "topic": node.topic,
                        "stores": list(node.stores),
                        "predecessors": node.before,
                        "successors": node.after,
                    }
                    for node in _nodes(subtopology).values()
                ],
                "stores": [
                    {
                        "name": store.name,
                        "kind": store.kind.value,
                        "place": _place(store),
                        "retention_ms": store.retention_ms,
                        "is_logged": store.is_logged,
                        "changelog": store.source_topic or changelog_topic(plan.application_id, store.name)
                        if store.is_logged
                        else None,
                    }
                    for store in subtopology.stores
                ],
            }
            for subtopology in plan.subtopologies
        ],
    }


def _nodes(subtopology: SubTopology) -> dict[str, _Node]:
    nodes = {source.node: _Node(source.node, SPARK, SOURCE, source.topic) for source in subtopology.sources}

    def add(
        previous: str,
        name: str,
        runs: str,
        kind: str = PROCESSOR,
        topic: str | None = None,
        stores: tuple[str, ...] = (),
    ) -> str:
        node = nodes.setdefault(name, _Node(name, runs, kind, topic, stores))
        if previous not in node.before:
            node.before.append(previous)
            nodes[previous].after.append(name)
        return name

    for pipeline in subtopology.pipelines:
        end = subtopology.sources[pipeline.source].node
        for step in pipeline.steps:
            end = add(end, step.node, SPARK)
        if pipeline.aggregation:
            add(end, pipeline.aggregation.node, BOTH, stores=(pipeline.aggregation.store.name,))
        for sink in pipeline.sinks:
            add(end, sink.node, TASK_LOOP, SINK, sink.topic)
    for row_node in subtopology.nodes:
        for before in row_node.inputs:
            if isinstance(row_node, RowSink):
                add(before, row_node.node, TASK_LOOP, SINK, row_node.sink.topic)
            else:
                add(before, row_node.node, TASK_LOOP, stores=tuple(_stores_read(row_node)))
    # In the order in which they were written, which the numbers in their names show.
    return dict(sorted(nodes.items(), key=lambda named: named[0].rpartition("-")[2]))


def _stores_read(node: TaskNode) -> list[str]:
    """Return the names of the stores that a node keeps, and of those of other nodes that it reads."""
    names = [store.name for store in node.stores]
    if isinstance(node, StreamTableJoin):
        names.append(node.table_store.name)
    if isinstance(node, TableTableJoin):
        names += [node.left_store.name, node.right_store.name]
    return names


def _store_lines(application_id: str, store: StoreSpec, aggregation: Aggregation | None) -> list[str]:
    facts = [
        ("windows", _windows(aggregation.window if aggregation else None)),
        ("retention", _retention(store)),
        ("changelog", _changelog(application_id, store)),
        ("profile", "" if store.profile == "default" else store.profile),
        ("topic", ", ".join(f"{key}={value}" for key, value in store.topic_config)),
        ("ttl", "" if store.ttl_ms is None else f"{format_ms(store.ttl_ms)} after the last write"),
        (
            "entries",
            ""
            if store.max_entries is None
            else f"at most {store.max_entries} per task, the least recently used are deleted",
        ),
        ("queries", "private: never answered" if store.private else ""),
    ]
    if aggregation is not None:
        facts.append(("by", aggregation.key_name))
        facts += [(a.name, f"{a.call}, {a.number.name}") for a in aggregation.aggregates]
    elif store.columns:
        facts.append(("columns", ", ".join(f"{column.name} {column.type}" for column in store.columns)))
    facts = [(name, fact) for name, fact in facts if fact]
    width = max(len(name) for name, _ in facts) + 2
    return [
        f"   {store.name}: {store.kind.value}, {_place(store)}",
        *(f"      {name:<{width}}{fact}" for name, fact in facts),
    ]


def _place(store: StoreSpec) -> str:
    return f"custom ({store.custom})" if store.custom else "in memory" if store.in_memory else "RocksDB"


def _changelog(application_id: str, store: StoreSpec) -> str:
    if not store.is_logged:
        return "none: the store's contents are lost with its folder and cannot be restored"
    if store.source_topic is not None:
        return f"{store.source_topic}, the table's own topic"
    return changelog_topic(application_id, store.name)


def _windows(window: AnyWindow | None) -> str:
    if window is None:
        return ""
    grace = f"grace {format_ms(window.grace_ms)}"
    if isinstance(window, SessionWindow):
        return f"sessions with a gap of {format_ms(window.gap_ms)}, {grace}"
    if isinstance(window, SlidingWindow):
        return f"sliding {format_ms(window.difference_ms)}, {grace}"
    if window.size_ms == window.advance_ms:
        return f"tumbling {format_ms(window.size_ms)}, {grace}"
    return f"hopping {format_ms(window.size_ms)} every {format_ms(window.advance_ms)}, {grace}"


def _retention(store: StoreSpec) -> str:
    if store.retention_ms is None or store.segment_ms is None:
        return "for ever"
    return f"{format_ms(store.retention_ms)}, in segments of {format_ms(store.segment_ms)}"
