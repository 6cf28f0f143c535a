"""The compiled form of a topology: frozen, validated, free of Spark.

`Topology.plan()` builds it. `describe` prints it, `spark_jobs` turns `Source` and `Pipeline` into DataFrames, and the task loop
runs `Aggregation` on Arrow columns. Durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.topology.key_serde import KeySerde
from tidemark.topology.value_serde import ValueSerde


@dataclass(frozen=True)
class Column:
    """A column of a source's schema. `type` is the name of the Spark SQL type, in capitals."""

    name: str
    type: str


@dataclass(frozen=True)
class Expected:
    """A rule for the values of a topic's column; see `tidemark.topology.contracts.expect`. None means no such rule."""

    column: str
    not_null: bool
    low: float | None
    high: float | None
    values: tuple[str | int | float | bool, ...] | None
    pattern: str | None


class OnError(Enum):
    """Reaction to a record that cannot be read or that user code refuses (see invariant: no record stops a stream)."""

    DEAD_LETTER = "dead_letter"
    FAIL = "fail"


@dataclass(frozen=True)
class Source:
    """A topic of JSON records. `key` and `timestamp` are SQL over the schema's columns.

    `timestamp` yields BIGINT epoch milliseconds. A record without a value keeps its Kafka key and timestamp; in the source of
    a table (`is_table`) it deletes its key. `expects` is the contract of the topic. With `checks_key`, a record for which `key`
    gives another text than its Kafka key becomes a dead letter, because a node keeps or looks up state by the key
    (`keyless.with_checked_keys`). `key_serde` is the form in which the topic's keys are written; `_key` is their text.
    `value_serde` is the form in which its values are written.
    """

    node: str
    topic: str
    schema: tuple[Column, ...]
    key: str
    timestamp: str
    is_table: bool = False
    expects: tuple[Expected, ...] = ()
    on_error: OnError = OnError.DEAD_LETTER
    checks_key: bool = False
    key_serde: KeySerde = KeySerde.STRING
    value_serde: ValueSerde = ValueSerde.JSON


@dataclass(frozen=True)
class Filter:
    """Keeps the records for which `condition` is true."""

    node: str
    condition: str


@dataclass(frozen=True)
class Select:
    """Replaces the columns of a record by named expressions. Key and timestamp are kept."""

    node: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rekey:
    """Gives the records another key and is followed by a repartition topic.

    Records whose new key is null are dropped unless `keeps_null_keys`.
    """

    node: str
    key: str
    keeps_null_keys: bool = False


Step = Filter | Select | Rekey


@dataclass(frozen=True)
class Window:
    """Hopping windows of `size_ms` every `advance_ms`; tumbling windows if the two are equal."""

    size_ms: int
    advance_ms: int
    grace_ms: int


@dataclass(frozen=True)
class SessionWindow:
    """Windows per key that end after a gap longer than `gap_ms`. They start and end at their first and last record."""

    gap_ms: int
    grace_ms: int


@dataclass(frozen=True)
class SlidingWindow:
    """Kafka Streams' sliding windows: for each record at t the windows [t - difference, t] and [t + 1, t + 1 + difference]."""

    difference_ms: int
    grace_ms: int


class Fold(Enum):
    """Rule by which partial results of an aggregate are merged."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    DISTINCT = "distinct"
    QUANTILE = "quantile"
    COLLECT = "collect"


class Number(Enum):
    """Type of an aggregate's result. The values of LONG and DOUBLE are numpy names of eight-byte little-endian types."""

    LONG = "<i8"
    DOUBLE = "<f8"
    TEXT = "text"


MOST_STORED_FIELDS = 64
"""The most fields in a value of a store of aggregates; the value's validity mask has a bit for each."""


@dataclass(frozen=True)
class Aggregate:
    """One named result. `expression` is SQL over the record's columns, or None for `count(*)`.

    `argument` is the rank of a quantile, 0 to 1, or the number of values that a collect keeps; None for other functions.
    """

    name: str
    fold: Fold
    expression: str | None
    number: Number
    argument: float | int | None = None

    @property
    def call(self) -> str:
        """The aggregate as it is written: `quantile(ms, 0.99)`."""
        argument = "" if self.argument is None else f", {self.argument}"
        return f"{self.fold.value}({self.expression or '*'}{argument})"

    @property
    def stored_fields(self) -> int:
        """The number of fields that it takes in a stored value: a mean is stored as its sum and its count."""
        return 2 if self.fold is Fold.MEAN else 1


class StoreKind(Enum):
    """Layout of a store's keys."""

    KEY_VALUE = "key-value"
    WINDOW = "window"
    SESSION = "session"


@dataclass(frozen=True)
class StoreSpec:
    """A state store. Window stores keep `retention_ms` of stream time, in segments that are dropped whole when expired.

    `columns` are the columns of a store of rows, and empty for a store of aggregates. `ttl_ms` deletes a key that was not
    written for that long in stream time; `max_entries` deletes the keys that were used least recently. `source_topic` is
    the topic of a table that serves as its changelog. `custom` is the import path of a user's store. `generation` counts how
    often an upgrade or a rescale has rewritten the contents into another changelog; topology modules do not set it. A
    `private` store is never read by interactive queries.
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
    private: bool = False

    @property
    def is_rocksdb(self) -> bool:
        """True if RocksDB holds the store, so that its folder can be built, copied and linked."""
        return not self.in_memory and self.custom is None

    @property
    def has_changelog(self) -> bool:
        """True if the store has a changelog topic of its own. A table may use its source topic instead."""
        return self.is_logged and self.source_topic is None

    @property
    def has_order(self) -> bool:
        """True if keys leave the store by age or number; the store of their order then comes after it in the plan."""
        return self.ttl_ms is not None or self.max_entries is not None

    @property
    def uncopied(self) -> str | None:
        """Short reason why a copy of the store outside its instance makes no sense; None if it makes sense."""
        if self.in_memory:
            return "in memory"
        if self.custom is not None:
            return "custom"
        if not self.is_logged:
            return "not logged"
        return None if self.source_topic is None else f"kept by its source topic {self.source_topic}"


class WindowedKey(Enum):
    """Encoding of the window in a record's key: the bytes after the key, as Kafka Streams' `WindowedSerdes` write them.

    The value is the number of these bytes. Each part is epoch milliseconds, eight bytes big-endian.
    """

    TIME = 8
    """The window's start (`TimeWindowedSerializer`)."""
    SESSION = 16
    """The session's end, then its start (`SessionWindowedSerializer`)."""


@dataclass(frozen=True)
class Sink:
    """A topic that receives JSON records, by murmur2 of the key unless `partitioner` is set.

    `partitioner` is `sticky` or the import path of a function. The Kafka timestamp of a record is its event time. `expects`
    is the contract of the topic. With `windowed_key` the record's key also contains its window; the partition is chosen by
    the key without the window. `key_serde` is the form in which keys are written: murmur2 is that of the written bytes, but
    `partitioner` gets the key's text. `value_serde` is the form in which values are written; those of Avro have the schema
    `value_schema`, as JSON.
    """

    node: str
    topic: str
    partitioner: str | None = None
    is_repartition: bool = False
    expects: tuple[Expected, ...] = ()
    windowed_key: WindowedKey | None = None
    key_serde: KeySerde = KeySerde.STRING
    value_serde: ValueSerde = ValueSerde.JSON
    value_schema: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """A stateful node that merges the partial results of Spark into `store` and emits each updated result.

    It emits the key under `key_name`, `window_start` and `window_end` (BIGINT, epoch milliseconds) if there are windows, then
    the aggregates.
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
    """A node of the task loop: takes the rows of the nodes `inputs`, emits rows with `columns`, keeps `stores`."""

    node: str
    inputs: tuple[str, ...]
    columns: tuple[Column, ...]
    stores: tuple[StoreSpec, ...]


class WhenFull(Enum):
    """Reaction of suppress when its buffer reaches its bound."""

    SHUT_DOWN = "shut_down_when_full"
    EMIT_EARLY = "emit_early_when_full"


@dataclass(frozen=True)
class Suppress(TaskNode):
    """Emits one final result per window and key once stream time passes `window_end` + `grace_ms`. Stores open windows."""

    grace_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: WhenFull


@dataclass(frozen=True)
class Reduce(TaskNode):
    """Folds rows into one per key, and per window if there are windows, by a Python function given by import path.

    Without `initializer` the function is `function(old, new) -> row`, and the first row of a key is its value. With it, the
    function is `function(key, row, aggregate) -> aggregate`. Rows are dictionaries. Emits the same columns as `Aggregation`.
    """

    function: str
    initializer: str | None
    window: Window | None
    key_name: str
    on_error: OnError = OnError.DEAD_LETTER


@dataclass(frozen=True)
class TableSource(TaskNode):
    """Keeps the last row of each key in its store, and emits every update, deletions included.

    `is_view` means that the rows of another node's table are kept here for joins. The joins see an update as soon as that
    node has made it.
    """

    is_view: bool = False


class JoinKind(Enum):
    """Kind of a join; it determines which rows without a partner are emitted, padded with nulls."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"


@dataclass(frozen=True)
class StreamTableJoin(TaskNode):
    """Joins each row of the stream (input 0) with the row that the table (input 1) had for its key at that time.

    Reads `table_store`, which the table's own node writes.
    """

    kind: JoinKind
    table_store: StoreSpec
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


@dataclass(frozen=True)
class TableTableJoin(TaskNode):
    """Joins the rows of two tables by key; emits an update when either changes, a deletion when a needed row is deleted."""

    kind: JoinKind
    left_store: StoreSpec
    right_store: StoreSpec
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


@dataclass(frozen=True)
class StreamStreamJoin(TaskNode):
    """Pairs the rows of one key with -`before_ms` <= right.ts - left.ts <= `after_ms`.

    Its stores are the left rows and the right rows (window stores) and, except for inner joins, the rows without a partner
    so far.
    """

    kind: JoinKind
    before_ms: int
    after_ms: int
    grace_ms: int
    left_columns: tuple[Column, ...]
    right_columns: tuple[Column, ...]


class Punctuate(Enum):
    """The kind of time by which a processor is called."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK = "wall_clock"


@dataclass(frozen=True)
class Process(TaskNode):
    """A user's processor, given by import path. With `is_batched` it takes Arrow tables instead of records.

    With `keeps_key` it forwards only the key of each record; the task loop enforces that.
    """

    processor: str
    is_batched: bool
    keeps_key: bool = False
    on_error: OnError = OnError.DEAD_LETTER


@dataclass(frozen=True)
class Map(TaskNode):
    """Stateless SQL after a stateful node: keeps the rows for which `condition` is true, computes `selected`, sets the key.

    `key` is SQL over the columns, or `_key` for a repartition by the keys that the rows have. `identifying_columns` are those
    of the key and the window whose result a row is; a deleted row keeps them. `keeps_null_keys` is as in `Rekey`.
    """

    condition: str | None
    selected: tuple[tuple[str, str], ...] | None
    key: str | None
    identifying_columns: tuple[str, ...] = ()
    keeps_null_keys: bool = False


@dataclass(frozen=True)
class RowSink(TaskNode):
    """Writes rows to a topic. A deleted row becomes a tombstone."""

    sink: Sink


@dataclass(frozen=True)
class Pipeline:
    """A path through Spark: from a source through stateless steps to an aggregation, to the task loop, or to sinks.

    `source` is an index into the sub-topology's sources. `end` names the node at which the path ends. If `enters`, the
    records themselves continue in the task loop under that name.
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
    """All nodes that are connected without a topic in between: one query, and one task per partition of the sources.

    The first source leads: the group assigns its partitions (see invariant: co-partitioning). `nodes` are sorted so that each
    comes after its inputs.
    """

    index: int
    sources: tuple[Source, ...]
    pipelines: tuple[Pipeline, ...]
    nodes: tuple[TaskNode, ...] = ()

    @property
    def lead(self) -> Source:
        """The source whose assignment decides the tasks."""
        return self.sources[0]

    @property
    def source_topics(self) -> tuple[str, ...]:
        """All topics that this sub-topology reads."""
        return tuple(source.topic for source in self.sources)

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        """The nodes that merge partial results, in the order of the pipelines."""
        return tuple(pipeline.aggregation for pipeline in self.pipelines if pipeline.aggregation)

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """All stores of a task, in the order of the nodes."""
        nodes: tuple[Aggregation | TaskNode, ...] = (*self.aggregations, *self.nodes)
        return tuple(store for node in nodes for store in node.stores)

    @property
    def unlogged_groups(self) -> tuple[tuple[StoreSpec, ...], ...]:
        """The stores without a changelog, each together with the store of its keys' order, if it has one.

        The two mean nothing without each other: a start continues with a whole group, or begins it empty.
        """
        stores = self.stores
        return tuple(
            stores[number : number + 1 + spec.has_order]
            for number, spec in enumerate(stores)
            if not spec.is_logged and not (number and stores[number - 1].has_order)
        )

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """All sinks; those of the Spark part come first."""
        rows = (node.sink for node in self.nodes if isinstance(node, RowSink))
        return (*(sink for pipeline in self.pipelines for sink in pipeline.sinks), *rows)

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """All topics that this sub-topology writes, without repeats."""
        return tuple(dict.fromkeys(sink.topic for sink in self.sinks))


class Guarantee(Enum):
    """The guarantee of processing after a crash."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Acks(Enum):
    """Condition for a record to count as written: it was sent, its leader has it, or all in-sync replicas have it.

    Ordered from the weakest to the strongest.
    """

    NONE = "0"
    LEADER = "1"
    ALL = "all"

    def is_weaker_than(self, other: Acks) -> bool:
        """Return whether this waits for less than `other`."""
        order = list(Acks)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class TopologyPlan:
    """A whole application.

    `routed` are source topics that a rescale sends through repartition topics, so their partitions may grow.
    `tolerated_broker_failures` is the number of brokers that may be lost at once, while nothing acknowledged is lost and every
    topic still accepts records; 0 requires nothing. `acks` is what outputs wait for; topics on which state depends always wait
    for all in-sync replicas. `num_standby_replicas` is the number of standbys that run beside the instances.
    """

    application_id: str
    version: str
    guarantee: Guarantee
    subtopologies: tuple[SubTopology, ...]
    routed: tuple[str, ...] = ()
    tolerated_broker_failures: int = 0
    acks: Acks = Acks.ALL
    num_standby_replicas: int = 0

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """All stores of the application."""
        return tuple(store for s in self.subtopologies for store in s.stores)

    @property
    def lead_topics(self) -> dict[str, str]:
        """The lead topic of the sub-topology that reads each source topic; only lead topics are assigned to members."""
        return {topic: s.lead.topic for s in self.subtopologies for topic in s.source_topics}

    @property
    def has_avro(self) -> bool:
        """Whether a source or a sink has values of Avro."""
        forms = {source.value_serde for s in self.subtopologies for source in s.sources}
        return ValueSerde.AVRO in forms | {sink.value_serde for s in self.subtopologies for sink in s.sinks}

    @property
    def repartition_topics(self) -> tuple[str, ...]:
        """The topics between its sub-topologies, which Tidemark creates and purges."""
        return tuple(dict.fromkeys(sink.topic for s in self.subtopologies for sink in s.sinks if sink.is_repartition))

    @property
    def output_topics(self) -> tuple[str, ...]:
        """The topics that it writes for others: not those between its sub-topologies, and not those that it reads."""
        own = {*self.repartition_topics, *(topic for s in self.subtopologies for topic in s.source_topics)}
        return tuple(dict.fromkeys(t for s in self.subtopologies for t in s.sink_topics if t not in own))
