"""The mutable form of a topology while it is being written; `Topology.plan()` freezes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.errors import InvalidTopology
from tidemark.names import changelog_topic, is_legal_name
from tidemark.topology.keyless import with_checked_keys, with_null_keys
from tidemark.topology.plan import (
    Aggregation,
    Column,
    Pipeline,
    Sink,
    Source,
    Step,
    SubTopology,
    TaskNode,
)
from tidemark.topology.schema import ROW_TYPE_NAMES

LONGEST_TOPIC = 249


@dataclass
class PipelineDraft:
    """A path from a source; `end` is the last node before the aggregation, the task loop or the sinks."""

    topic: str
    end: str
    steps: tuple[Step, ...]
    columns: tuple[Column, ...]
    aggregation: Aggregation | None = None
    sinks: list[Sink] = field(default_factory=list)
    enters: bool = False


@dataclass
class Draft:
    """The nodes of one application in the order in which they were written."""

    application_id: str
    is_optimised: bool = False
    next_index: int = 0
    sources: dict[str, Source] = field(default_factory=dict)
    pipelines: list[PipelineDraft] = field(default_factory=list)
    nodes: list[TaskNode] = field(default_factory=list)
    dead_ends: dict[str, str] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    repartitions: dict[str, str] = field(default_factory=dict)
    _groups: dict[str, str] = field(default_factory=dict)

    def node_name(self, kind: str) -> str:
        """Return the next node's name, numbered as in Kafka Streams: `KSTREAM-FILTER-0000000001`."""
        name = f"{kind}-{self.next_index:010d}"
        self.next_index += 1
        return name

    def topic(self, name: str, where: str) -> str:
        """Check the name of a user's topic and return it. Raises `InvalidTopology` for an illegal name."""
        if not isinstance(name, str) or not is_legal_name(name):
            raise InvalidTopology(
                f"{where}: {name!r} is not a topic name; use 1 to 200 letters, digits, '.', '_' and '-'"
            )
        return name

    def store_name(self, name: str, where: str, argument: str = "store=") -> str:
        """Register a new store's name. Raises `InvalidTopology` for an illegal, repeated or too long name."""
        if not isinstance(name, str) or not is_legal_name(name):
            raise InvalidTopology(
                f"{where}: {name!r} is not a store name; use 1 to 200 letters, digits, '.', '_' and '-'"
            )
        if name.casefold() in self.stores:
            raise InvalidTopology(
                f"{where}: store '{name}' already exists, at {self.stores[name.casefold()]}; give another {argument} name"
            )
        self.check_internal_topic(changelog_topic(self.application_id, name), f"{where}: changelog topic")
        self.stores[name.casefold()] = where
        return name

    def check_internal_topic(self, topic: str, where: str) -> None:
        """Raise `InvalidTopology` if the name of an internal topic is too long for Kafka."""
        if len(topic) > LONGEST_TOPIC:
            raise InvalidTopology(
                f"{where} '{topic}' has {len(topic)} characters, Kafka allows {LONGEST_TOPIC}; "
                f"shorten the store's or the application's name"
            )

    def add_source(self, source: Source) -> None:
        """Add a topic that is read. It is a group of its own until a join ties it to another topic."""
        self.sources[source.topic] = source
        self._groups[source.topic] = source.topic

    def group(self, topic: str) -> str:
        """Return the topic that represents the group of `topic` and all topics that it is joined with."""
        while self._groups[topic] != topic:
            topic = self._groups[topic]
        return topic

    def tie(self, topics: Iterable[str]) -> None:
        """Let the same tasks read these topics. The one written first leads (see invariant: co-partitioning)."""
        roots = {self.group(topic) for topic in topics}
        first = next(topic for topic in self.sources if topic in roots)
        self._groups.update(dict.fromkeys(roots, first))

    def pipeline(self, topic: str, end: str, steps: tuple[Step, ...], columns: tuple[Column, ...]) -> PipelineDraft:
        """Return the path to `end` that ends in sinks or in the task loop. There is one per node."""
        for known in self.pipelines:
            if known.aggregation is None and known.end == end:
                return known
        self.dead_ends.pop(end, None)
        self.pipelines.append(PipelineDraft(topic, end, steps, columns))
        return self.pipelines[-1]

    def add_node(self, node: TaskNode, *, is_end: bool = False) -> None:
        """Add a node of the task loop. It is a dead end until another node takes its output, unless it `is_end`."""
        for name in node.inputs:
            self.dead_ends.pop(name, None)
        self.nodes.append(node)
        if not is_end:
            self.dead_ends[node.node] = ""

    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """Return one sub-topology per group of topics, in the order in which their first topics were written."""
        found: list[SubTopology] = []
        for lead in self.sources:
            if self.group(lead) != lead:
                continue
            sources = tuple(source for topic, source in self.sources.items() if self.group(topic) == lead)
            index_of = {source.topic: i for i, source in enumerate(sources)}
            pipelines = tuple(
                Pipeline(index_of[b.topic], b.end, b.steps, b.columns, b.aggregation, tuple(b.sinks), b.enters)
                for b in self.pipelines
                if b.topic in index_of
            )
            reached = {pipeline.aggregation.node if pipeline.aggregation else pipeline.end for pipeline in pipelines}
            nodes: list[TaskNode] = []
            for node in self.nodes:
                if reached & set(node.inputs):
                    nodes.append(node)
                    reached.add(node.node)
            found.append(SubTopology(len(found), sources, pipelines, tuple(nodes)))
        return with_checked_keys(with_null_keys(found))


def check_row_columns(columns: Iterable[Column], where: str, *, are_declared: bool = False) -> None:
    """Raise `InvalidTopology` for a column type that the task loop cannot hold. `are_declared`: columns of a schema."""
    known = ", ".join(sorted(ROW_TYPE_NAMES))
    for column in columns:
        if column.type not in ROW_TYPE_NAMES:
            remedy = f"select it as one of {known} before, e.g. CAST({column.name} AS STRING)"
            if are_declared:
                remedy = f"declare it as one of {known}"
            raise InvalidTopology(
                f"{where}: column '{column.name}' is {column.type}, which the task loop cannot hold; {remedy}"
            )
