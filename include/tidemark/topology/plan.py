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
class Expected:
    """What each value of a topic's column should be; see `tidemark.topology.contracts.expect`. None: no such rule."""

    column: str
    not_null: bool
    low: float | None
    high: float | None
    values: tuple[str | int | float | bool, ...] | None
    pattern: str | None


class OnError(Enum):
    """What becomes of a record that cannot be read, or that a user's code refuses by raising (rule 28)."""

    DEAD_LETTER = "dead_letter"
    FAIL = "fail"


@dataclass(frozen=True)
class Source:
    """A topic of JSON records. `key` and `timestamp` are SQL over the schema's columns.

    `timestamp` yields BIGINT epoch milliseconds. A record without a value keeps its Kafka key and timestamp; in a table's
    source (`is_table`) it deletes its key.
    `expects` is its contract.
    """

    node: str
    topic: str
    schema: tuple[Column, ...]
    key: str
    timestamp: str
    is_table: bool = False
    expects: tuple[Expected, ...] = ()
    on_error: OnError = OnError.DEAD_LETTER


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


@dataclass(frozen=True)
class Rekey:
    """Gives the records another key; what follows is a repartition topic.

    `keeps_null_keys`: records whose new key is null go there too; else they are left out.
    """

    node: str
    key: str
    keeps_null_keys: bool = False


Step = Filter | Select | Rekey


@dataclass(frozen=True)
class Window:
    """Hopping windows of `size_ms` every `advance_ms`; tumbling where the two are equal."""

    size_ms: int
    advance_ms: int
    grace_ms: int


@dataclass(frozen=True)
class SessionWindow:
    """Windows per key that end when nothing came for longer than `gap_ms`. Start and end are its first and last record."""

    gap_ms: int
    grace_ms: int


@dataclass(frozen=True)
class SlidingWindow:
    """Kafka Streams' sliding windows: for each record at t the windows [t - difference, t] and [t + 1, t + 1 + difference]."""

    difference_ms: int
    grace_ms: int


class Fold(Enum):
    """How partial results of one aggregate merge."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    DISTINCT = "distinct"
    QUANTILE = "quantile"
    COLLECT = "collect"


class Number(Enum):
    """What an aggregate gives. LONG and DOUBLE are numpy's names of eight bytes, little-endian, as most folds keep them."""

    LONG = "<i8"
    DOUBLE = "<f8"
    TEXT = "text"


@dataclass(frozen=True)
class Aggregate:
    """One named result. `expression` is SQL over the record's columns, or None for `count(*)`.

    `argument` is the rank of a quantile, 0 to 1, or how many values a collect keeps; None for other folds.
    """

    name: str
    fold: Fold
    expression: str | None
    number: Number
    argument: float | int | None = None

    @property
    def call(self) -> str:
        """As it is written: `quantile(ms, 0.99)`."""
        argument = "" if self.argument is None else f", {self.argument}"
        return f"{self.fold.value}({self.expression or '*'}{argument})"


class StoreKind(Enum):
    """Layout of a store's keys."""

    KEY_VALUE = "key-value"
    WINDOW = "window"
    SESSION = "session"


@dataclass(frozen=True)
class StoreSpec:
    """A state store. Window stores keep `retention_ms` of stream time, in segments dropped whole when expired.

    `columns` are those of a store of rows, empty for a store of aggregates. `ttl_ms` deletes a key that was not written
    for so long (stream time); `max_entries` deletes the keys least recently written. `source_topic`: the topic of a table
    that is its own changelog. `custom` is the import path of a user's store. `generation` counts how often an upgrade or a
    rescale has written the contents anew, into another changelog; a topology module knows nothing of it.
    """

    name: str
    kind: StoreKind
    retention_ms: int | None
    segment_ms: int | None
    in_memory: bool = False
    is_logged: bool = True
    columns: tuple[Column, ...] = ()
    ttl_ms: int | None = None
    max_entries: int | None = None
    profile: str = "default"
    topic_config: tuple[tuple[str, str], ...] = ()
    source_topic: str | None = None
    custom: str | None = None
    generation: int = 0

    @property
    def is_rocksdb(self) -> bool:
        """Whether RocksDB holds it, so that its folder can be built, copied and linked."""
        return not self.in_memory and self.custom is None

    @property
    def has_changelog(self) -> bool:
        """Whether a changelog topic of its own backs it. A table may be kept by its source topic instead."""
        return self.is_logged and self.source_topic is None

    @property
    def uncopied(self) -> str | None:
        """Why no copy of it outside its instance makes sense, in a few words; None where one does."""
        if self.in_memory:
            return "in memory"
        if self.custom is not None:
            return "custom"
        if not self.is_logged:
            return "not logged"
        return None if self.source_topic is None else f"kept by its source topic {self.source_topic}"


class WindowedKey(Enum):
    """How a record's key says its window: the bytes that follow the key, as Kafka Streams' `WindowedSerdes` write them.

    The value is their number. Each part is epoch milliseconds, eight bytes big-endian.
    """

    TIME = 8
    """The window's start (`TimeWindowedSerializer`)."""
    SESSION = 16
    """The session's end, then its start (`SessionWindowedSerializer`)."""


@dataclass(frozen=True)
class Sink:
    """A topic that receives JSON records, by murmur2 of the key unless `partitioner` says otherwise.

    `partitioner` is `sticky` or the import path of a function. Records carry their event time as Kafka timestamp.
    `expects` is its contract. With `windowed_key` the record's key says its window, too; the partition goes by the key
    without it.
    """

    node: str
    topic: str
    partitioner: str | None = None
    is_repartition: bool = False
    expects: tuple[Expected, ...] = ()
    windowed_key: WindowedKey | None = None


@dataclass(frozen=True)
class Aggregation:
    """A stateful node: partial results that Spark made merge into `store`. It emits each updated result.

    Emitted columns: the key under `key_name`, `window_start` and `window_end` (BIGINT, epoch milliseconds) where there are
    windows, then the aggregates.
    """

    node: str
    store: StoreSpec
    window: Window | SessionWindow | SlidingWindow | None
    key_name: str
    aggregates: tuple[Aggregate, ...]
    columns: tuple[Column, ...]

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The one store."""
        return (self.store,)


@dataclass(frozen=True)
class TaskNode:
    """A node of the task loop: takes the rows of `inputs` (node names), emits rows with `columns`, keeps `stores`."""

    node: str
    inputs: tuple[str, ...]
    columns: tuple[Column, ...]
    stores: tuple[StoreSpec, ...]


class WhenFull(Enum):
    """What suppress does when its buffer reaches its bound."""

    SHUT_DOWN = "shut_down_when_full"
    EMIT_EARLY = "emit_early_when_full"


@dataclass(frozen=True)
class Suppress(TaskNode):
    """One final result per window and key, once stream time is past `window_end` + `grace_ms`. Store: the open windows."""

    grace_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: WhenFull


@dataclass(frozen=True)
class Reduce(TaskNode):
    """Folds rows into one per key, and per window where there is one, by a Python function given by import path.

    Without `initializer`: `function(old, new) -> row`, the first row of a key is its value. With it:
    `function(key, row, aggregate) -> aggregate`. Rows are dictionaries. Emits as an `Aggregation` does.
    """

    function: str
    initializer: str | None
    window: Window | None
    key_name: str
    on_error: OnError = OnError.DEAD_LETTER


@dataclass(frozen=True)
class TableSource(TaskNode):
    """Keeps the last row of each key in its store, and emits every update, deletions included.

    `is_view`: the table is another node's, whose rows are kept here for joins; they see an update as soon as that node has
    made it.
    """

    is_view: bool = False


class JoinKind(Enum):
    """Which rows without a partner are emitted, with nulls."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"


@dataclass(frozen=True)
class StreamTableJoin(TaskNode):
    """Each row of the stream (input 0) with the table's row of its key as it stood then (input 1).

    Reads the table's store, `table_store`, which the table's own node keeps.
    """

    kind: JoinKind
    table_store: StoreSpec
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


@dataclass(frozen=True)
class TableTableJoin(TaskNode):
    """The row of two tables for each key, updated when either is; deleted when what it needs is."""

    kind: JoinKind
    left_store: StoreSpec
    right_store: StoreSpec
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


@dataclass(frozen=True)
class StreamStreamJoin(TaskNode):
    """Pairs of rows of one key with -`before_ms` <= right.ts - left.ts <= `after_ms`.

    Stores: the left rows, the right rows (window stores), and, unless inner, the rows without a partner so far.
    """

    kind: JoinKind
    before_ms: int
    after_ms: int
    grace_ms: int
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


class Punctuate(Enum):
    """Which time calls a processor."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK = "wall_clock"


@dataclass(frozen=True)
class Process(TaskNode):
    """A user's processor, by import path; `is_batched`: it takes Arrow tables instead of records.

    `keeps_key`: it forwards each record's own key only, which the task loop enforces.
    """

    processor: str
    is_batched: bool
    keeps_key: bool = False
    on_error: OnError = OnError.DEAD_LETTER


@dataclass(frozen=True)
class Map(TaskNode):
    """Stateless SQL behind a stateful node: keep the rows where `condition` is true, compute `selected`, set the key.

    `key` is SQL over the columns, or `_key` for a repartition under the keys that the rows have.
    `window_columns` say with the key which window's result a row is: a deleted row keeps them. `keeps_null_keys` as in
    `Rekey`.
    """

    condition: str | None
    selected: tuple[tuple[str, str], ...] | None
    key: str | None
    window_columns: tuple[str, ...] = ()
    keeps_null_keys: bool = False


@dataclass(frozen=True)
class RowSink(TaskNode):
    """Writes rows to a topic; a deleted row is a tombstone."""

    sink: Sink


@dataclass(frozen=True)
class Branch:
    """A road through Spark: from a source through stateless steps to an aggregation, to the task loop, or to sinks.

    `source` counts in the sub-topology's sources; `end` names the node that the road leads to. `enters` says that the
    records themselves go on in the task loop under that name.
    """

    source: int
    end: str
    steps: tuple[Step, ...]
    columns: tuple[Column, ...]
    aggregation: Aggregation | None
    sinks: tuple[Sink, ...]
    enters: bool = False


@dataclass(frozen=True)
class SubTopology:
    """What is connected without a topic in between: one query, one task per partition of the sources.

    The first source leads: its partitions are what the group assigns (rule 7). `nodes` are in an order in which each
    comes behind its inputs.
    """

    index: int
    sources: tuple[Source, ...]
    branches: tuple[Branch, ...]
    nodes: tuple[TaskNode, ...] = ()

    @property
    def lead(self) -> Source:
        """The source whose assignment decides the tasks."""
        return self.sources[0]

    @property
    def source_topics(self) -> tuple[str, ...]:
        """Every topic that this sub-topology reads."""
        return tuple(source.topic for source in self.sources)

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        """The nodes that merge partial results, in the branches' order."""
        return tuple(branch.aggregation for branch in self.branches if branch.aggregation)

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """Every store of a task, in the order of the nodes."""
        nodes: tuple[Aggregation | TaskNode, ...] = (*self.aggregations, *self.nodes)
        return tuple(store for node in nodes for store in node.stores)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Every sink, those of the Spark part first."""
        rows = (node.sink for node in self.nodes if isinstance(node, RowSink))
        return (*(sink for branch in self.branches for sink in branch.sinks), *rows)

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """Every topic that this sub-topology writes, without repeats."""
        return tuple(dict.fromkeys(sink.topic for sink in self.sinks))


class Guarantee(Enum):
    """What holds after a crash (row A4)."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Acks(Enum):
    """What counts as written: a record that was sent, that its leader has, or that every replica in sync has (row A5).

    From the weakest to the strongest.
    """

    NONE = "0"
    LEADER = "1"
    ALL = "all"

    def is_weaker_than(self, other: Acks) -> bool:
        """Whether it waits for less."""
        order = list(Acks)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class TopologyPlan:
    """A whole application. `routed`: topics that a rescale sends through repartition topics, whose partitions may grow.

    `survives`: how many brokers may go at once, nothing acknowledged being lost and every topic still taking records; 0
    asks for nothing. `acks` is what its outputs wait for; whatever state stands on waits for all replicas in sync.
    """

    application_id: str
    version: str
    guarantee: Guarantee
    subtopologies: tuple[SubTopology, ...]
    routed: tuple[str, ...] = ()
    survives: int = 0
    acks: Acks = Acks.ALL

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """Every store of the application."""
        return tuple(store for s in self.subtopologies for store in s.stores)

    @property
    def repartition_topics(self) -> tuple[str, ...]:
        """The topics between its sub-topologies, which Tidemark creates and purges."""
        return tuple(dict.fromkeys(sink.topic for s in self.subtopologies for sink in s.sinks if sink.is_repartition))

    @property
    def output_topics(self) -> tuple[str, ...]:
        """The topics that it writes for others: neither between its sub-topologies nor read by itself."""
        own = {*self.repartition_topics, *(topic for s in self.subtopologies for topic in s.source_topics)}
        return tuple(dict.fromkeys(t for s in self.subtopologies for t in s.sink_topics if t not in own))
