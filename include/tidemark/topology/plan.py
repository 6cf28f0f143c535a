"""The compiled form of a topology: frozen, validated, free of Spark.

`Topology.plan()` builds it; `describe` prints it, `spark_jobs` turns `Source` and `Branch` into DataFrames and the
task loop runs `Aggregation` on Arrow columns. Durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Column:
    """A column of a source's schema; `type` is Spark SQL's name of the type, in capitals."""

    name: str
    type: str


@dataclass(frozen=True)
class Source:
    """A topic of JSON records. `key` and `timestamp` are SQL over the schema's columns.

    `timestamp` yields BIGINT epoch milliseconds.
    """

    node: str
    topic: str
    schema: tuple[Column, ...]
    key: str
    timestamp: str


@dataclass(frozen=True)
class Filter:
    """Keeps the records for which `condition` is true."""

    node: str
    condition: str


@dataclass(frozen=True)
class Select:
    """Replaces a record's columns by named expressions; key and timestamp stay."""

    node: str
    columns: tuple[tuple[str, str], ...]


Step = Filter | Select


@dataclass(frozen=True)
class Window:
    """Hopping windows of `size_ms` every `advance_ms`; tumbling where the two are equal."""

    size_ms: int
    advance_ms: int
    grace_ms: int


class Fold(Enum):
    """How partial results of one aggregate merge."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


class Number(Enum):
    """How an aggregate's value is kept: eight bytes, little-endian."""

    LONG = "<i8"
    DOUBLE = "<f8"


@dataclass(frozen=True)
class Aggregate:
    """One named result. `expression` is SQL over the record's columns, or None for `count(*)`."""

    name: str
    fold: Fold
    expression: str | None
    number: Number


class StoreKind(Enum):
    """Layout of a store's keys."""

    KEY_VALUE = "key-value"
    WINDOW = "window"


@dataclass(frozen=True)
class StoreSpec:
    """A state store. Window stores keep `retention_ms` of stream time, in segments dropped whole when expired."""

    name: str
    kind: StoreKind
    retention_ms: int | None
    segment_ms: int | None
    in_memory: bool = False


@dataclass(frozen=True)
class Sink:
    """A topic that receives JSON records."""

    node: str
    topic: str


@dataclass(frozen=True)
class Aggregation:
    """A stateful node: partial results merge into `store`; each update goes to the sinks."""

    node: str
    store: StoreSpec
    window: Window | None
    key_name: str
    aggregates: tuple[Aggregate, ...]
    sinks: tuple[Sink, ...]


@dataclass(frozen=True)
class Branch:
    """A road from the source through stateless steps to one aggregation, or to sinks alone."""

    steps: tuple[Step, ...]
    columns: tuple[Column, ...]
    aggregation: Aggregation | None
    sinks: tuple[Sink, ...]


@dataclass(frozen=True)
class SubTopology:
    """What is connected without a topic in between: one query, one task per partition of `source.topic`."""

    index: int
    source: Source
    branches: tuple[Branch, ...]

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        """The stateful nodes, in the branches' order."""
        return tuple(branch.aggregation for branch in self.branches if branch.aggregation)

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """Every topic that this sub-topology writes for others to read, without repeats."""
        sinks = [s for b in self.branches for s in (*b.sinks, *(b.aggregation.sinks if b.aggregation else ()))]
        return tuple(dict.fromkeys(sink.topic for sink in sinks))


@dataclass(frozen=True)
class TopologyPlan:
    """A whole application."""

    application_id: str
    version: str
    subtopologies: tuple[SubTopology, ...]

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """Every store of the application."""
        return tuple(a.store for s in self.subtopologies for a in s.aggregations)
