"""A plan as text, laid out as Kafka Streams' `TopologyDescription`, plus where nodes run and what stores keep."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.names import changelog_topic
from tidemark.topology.durations import format_ms
from tidemark.topology.plan import Aggregation, StoreSpec, SubTopology, TopologyPlan, Window

SPARK = "Spark"
TASK_LOOP = "task loop"
BOTH = "Spark: partial results, task loop: merge and store"


@dataclass
class _Node:
    name: str
    head: str
    runs: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def describe(plan: TopologyPlan) -> str:
    """Several lines without a newline at the end; the same plan always gives the same text."""
    lines = [f"Application: {plan.application_id} (version {plan.version})", "Topologies:"]
    for subtopology in plan.subtopologies:
        lines.append(f"   Sub-topology: {subtopology.index}")
        for node in _nodes(subtopology).values():
            lines.append(f"    {node.head} [{node.runs}]")
            if not node.head.startswith("Sink"):
                lines.append(f"      --> {', '.join(node.after) or 'none'}")
            if not node.head.startswith("Source"):
                lines.append(f"      <-- {', '.join(node.before)}")
        lines.append("")
    if plan.stores:
        lines.append("Stores:")
        for subtopology in plan.subtopologies:
            for aggregation in subtopology.aggregations:
                lines += _store_lines(plan.application_id, aggregation)
    return "\n".join(lines).rstrip("\n")


def _nodes(subtopology: SubTopology) -> dict[str, _Node]:
    source = subtopology.source
    nodes = {source.node: _Node(source.node, f"Source: {source.node} (topics: [{source.topic}])", SPARK)}

    def add(previous: str, name: str, head: str, runs: str) -> str:
        node = nodes.setdefault(name, _Node(name, head, runs))
        if previous not in node.before:
            node.before.append(previous)
            nodes[previous].after.append(name)
        return name

    for branch in subtopology.branches:
        end = source.node
        for step in branch.steps:
            end = add(end, step.node, f"Processor: {step.node} (stores: [])", SPARK)
        sinks = branch.sinks
        if branch.aggregation:
            node, store = branch.aggregation.node, branch.aggregation.store.name
            end = add(end, node, f"Processor: {node} (stores: [{store}])", BOTH)
            sinks = branch.aggregation.sinks
        for sink in sinks:
            add(end, sink.node, f"Sink: {sink.node} (topic: {sink.topic})", TASK_LOOP)
    return nodes


def _store_lines(application_id: str, aggregation: Aggregation) -> list[str]:
    store = aggregation.store
    facts = [
        ("windows", _windows(aggregation.window)),
        ("retention", _retention(store)),
        ("changelog", changelog_topic(application_id, store.name)),
        ("by", aggregation.key_name),
        *((a.name, f"{a.fold.value}({a.expression or '*'}), {a.number.name}") for a in aggregation.aggregates),
    ]
    width = max(len(name) for name, _ in facts) + 2
    head = f"   {store.name}: {store.kind.value}, {'in memory' if store.in_memory else 'RocksDB'}"
    return [head, *(f"      {name:<{width}}{fact}" for name, fact in facts if fact)]


def _windows(window: Window | None) -> str:
    if window is None:
        return ""
    size, grace = format_ms(window.size_ms), f"grace {format_ms(window.grace_ms)}"
    if window.size_ms == window.advance_ms:
        return f"tumbling {size}, {grace}"
    return f"hopping {size} every {format_ms(window.advance_ms)}, {grace}"


def _retention(store: StoreSpec) -> str:
    if store.retention_ms is None or store.segment_ms is None:
        return "for ever"
    return f"{format_ms(store.retention_ms)}, in segments of {format_ms(store.segment_ms)}"
