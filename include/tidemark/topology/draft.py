"""What `Topology` and its streams write down while a topology is being described; `Topology.plan()` freezes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import InvalidTopology
from tidemark.names import changelog_topic, is_legal_name
from tidemark.topology.plan import Aggregate, Branch, Column, Sink, Source, Step, StoreKind, StoreSpec, Window
from tidemark.topology.plan import Aggregation as AggregationPlan

LONGEST_TOPIC = 249


@dataclass
class AggregationDraft:
    """A stateful node whose sinks are still being added."""

    node: str
    store: StoreSpec
    window: Window | None
    key_name: str
    aggregates: tuple[Aggregate, ...]
    sinks: list[Sink] = field(default_factory=list)


@dataclass
class BranchDraft:
    """A road from a source; `end` is the node that it leads to before aggregation or sinks."""

    source: Source
    end: str
    steps: tuple[Step, ...]
    columns: tuple[Column, ...]
    aggregation: AggregationDraft | None = None
    sinks: list[Sink] = field(default_factory=list)

    def plan(self) -> Branch:
        """The frozen form."""
        draft = self.aggregation
        aggregation = None
        if draft is not None:
            aggregation = AggregationPlan(
                draft.node, draft.store, draft.window, draft.key_name, draft.aggregates, tuple(draft.sinks)
            )
        return Branch(self.steps, self.columns, aggregation, tuple(self.sinks))


@dataclass
class Draft:
    """The nodes of one application in the order in which they were written."""

    application_id: str
    next_index: int = 0
    sources: dict[str, Source] = field(default_factory=dict)
    key_names: dict[str, str] = field(default_factory=dict)
    branches: list[BranchDraft] = field(default_factory=list)
    dead_ends: dict[str, str] = field(default_factory=dict)

    def node_name(self, kind: str) -> str:
        """The next node's name, numbered as Kafka Streams does: `KSTREAM-FILTER-0000000001`."""
        name = f"{kind}-{self.next_index:010d}"
        self.next_index += 1
        return name

    def topic(self, name: str, where: str) -> str:
        """A topic of the user's. Raises `InvalidTopology` for an illegal name."""
        if not isinstance(name, str) or not is_legal_name(name):
            raise InvalidTopology(
                f"{where}: {name!r} is not a topic name; use 1 to 200 letters, digits, '.', '_' and '-'"
            )
        return name

    def store_name(self, name: str, where: str) -> str:
        """A new store's name. Raises `InvalidTopology` for an illegal, repeated or too long one."""
        if not isinstance(name, str) or not is_legal_name(name):
            raise InvalidTopology(
                f"{where}: {name!r} is not a store name; use 1 to 200 letters, digits, '.', '_' and '-'"
            )
        for branch in self.branches:
            if branch.aggregation and branch.aggregation.store.name.casefold() == name.casefold():
                raise InvalidTopology(
                    f"{where}: store '{name}' exists already, at {branch.aggregation.node}; give another store= name"
                )
        if len(topic := changelog_topic(self.application_id, name)) > LONGEST_TOPIC:
            raise InvalidTopology(
                f"{where}: changelog topic '{topic}' has {len(topic)} characters, Kafka allows {LONGEST_TOPIC}; "
                f"shorten the store's or the application's name"
            )
        return name


def store_spec(name: str, window: Window | None, retention_ms: int | None) -> StoreSpec:
    """A store as Kafka Streams lays it out: segments of half the retention, a minute at least."""
    if window is None or retention_ms is None:
        return StoreSpec(name, StoreKind.KEY_VALUE, None, None)
    return StoreSpec(name, StoreKind.WINDOW, retention_ms, max(retention_ms // 2, 60_000))
