"""Streams: the methods with which a topology is written after `Topology.stream()`.

Every method returns a new handle, so a stream can be continued more than once: two aggregations of one stream are two
pipelines of one sub-topology. Steps before the first stateful node run in Spark, later steps in the task loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.errors import InvalidTopology
from tidemark.names import repartition_topic
from tidemark.topology.aggregates import aggregate_name, named_expression
from tidemark.topology.avro_schema import schema_of_sink
from tidemark.topology.contracts import checked_expects
from tidemark.topology.draft import Draft, check_row_columns
from tidemark.topology.key_serde import KeySerde, checked_key_serde
from tidemark.topology.plan import (
    Column,
    Expected,
    Filter,
    Map,
    OnError,
    Process,
    Rekey,
    RowSink,
    Select,
    SessionWindow,
    Sink,
    Source,
    Step,
    StoreSpec,
    WindowedKey,
)
from tidemark.topology.schema import KEY, RESERVED, TIMESTAMP, parse_schema
from tidemark.topology.sql.duckdb import duck_sql
from tidemark.topology.sql.expressions import bare_column, expression_type, quoted
from tidemark.topology.sql.types import NULL, UNKNOWN
from tidemark.topology.stores import DeclaredStore, declared_store, import_path, with_order
from tidemark.topology.value_serde import ValueSerde, checked_value_serde

if TYPE_CHECKING:
    from tidemark.topology.durations import Duration
    from tidemark.topology.grouped import GroupedStream
    from tidemark.topology.stores import AnyWindow, Materialized
    from tidemark.topology.table import Table


@dataclass(frozen=True)
class Stream:
    """Records after some stateless steps.

    `source` is None after a stateful node. `columns` are the fields of a record. On a source, until a `select`, expressions
    may also name `_key`, `_topic`, `_partition`, `_offset` and `_timestamp`.
    """

    draft: Draft
    topics: frozenset[str]
    node: str
    columns: tuple[Column, ...]
    key_name: str
    key_type: str
    source: Source | None = None
    steps: tuple[Step, ...] = ()
    rekeyed_by: str | None = None
    """The `process()` node that may have forwarded keys other than those of its records."""
    window: AnyWindow | None = None
    """The windows of the results, as long as the columns that form a windowed key are still there."""
    window_columns: frozenset[str] = frozenset()
    """Those of the columns `window_start` and `window_end` of the results that are still unchanged."""
    has_key: bool = True
    """Whether a column with the name `key_name`, if there is one, holds the key."""
    key_serde: KeySerde = KeySerde.STRING
    """The form of the keys by which the records were given to tasks. Tasks own keys by their text."""

    @property
    def available(self) -> tuple[Column, ...]:
        """The columns that the next expression may name."""
        if self.source is None or any(isinstance(step, Select) for step in self.steps):
            return self.columns
        return (*self.columns, *RESERVED)

    def filter(self, condition: str) -> Stream:
        """Keep the records for which the SQL condition is true. Raises `InvalidTopology`."""
        self._check_emits()
        node = self.draft.node_name("KSTREAM-FILTER")
        found = expression_type(condition, self.available, f"{node}: filter condition")
        if found not in ("BOOLEAN", UNKNOWN):
            raise InvalidTopology(
                f"{node}: filter condition: {quoted(condition)} is {found}, not BOOLEAN; compare it with something"
            )
        if self.source is None:
            duck_sql(condition, self.columns, f"{node}: filter condition")
            own = self._identifying_columns
            return self._mapped(Map(node, (self.node,), self.columns, (), condition.strip(), None, None, own))
        return self._then(Filter(node, condition.strip()), self.columns)

    def select(self, *columns: str, **named: str) -> Stream:
        """Replace the columns by `"expr AS name"`, plain column names, or `name="expr"`; key and timestamp are kept.

        Raises `InvalidTopology`.
        """
        self._check_emits()
        node = self.draft.node_name("KSTREAM-MAPVALUES")
        pairs = [named_expression(text, self.available, f"{node}: select") for text in columns]
        pairs += [(aggregate_name(name, f"{node}: select"), text) for name, text in named.items()]
        if not pairs:
            raise InvalidTopology(f"{node}: select() names no column; name one or leave the select out")
        selected: dict[str, Column] = {}
        for name, text in pairs:
            if name.casefold() in selected:
                raise InvalidTopology(f"{node}: select: column '{name}' occurs twice; rename one")
            if name.casefold() in {reserved.name for reserved in RESERVED}:
                raise InvalidTopology(
                    f"{node}: select: '{name}' is reserved for the record's own field; write '{name} AS another_name'"
                )
            found = expression_type(text, self.available, f"{node}: select {name}")
            if found in (UNKNOWN, NULL):
                raise InvalidTopology(
                    f"{node}: select {name}: the type of {quoted(text)} is unknown before it runs; "
                    f"cast it explicitly, e.g. CAST({text.strip()} AS STRING)"
                )
            selected[name.casefold()] = Column(name, found)
        chosen = tuple((name, text.strip()) for name, text in pairs)
        emitted = tuple(selected.values())
        if self.source is None:
            check_row_columns(emitted, f"{node}: select")
            for name, text in chosen:
                duck_sql(text, self.columns, f"{node}: select {name}")
            unchanged = {
                name for name, text in chosen if (bare := bare_column(text, self.columns)) and bare.name == name
            }
            own = tuple(name for name in self._identifying_columns if name in unchanged)
            mapped = self._mapped(Map(node, (self.node,), emitted, (), None, chosen, None, own))
            kept = self.window_columns & unchanged
            keeps_window = self.window is not None and kept.issuperset(_columns_of_key(self.window))
            return replace(
                mapped,
                has_key=self._keeps_key(chosen),
                window=self.window if keeps_window else None,
                window_columns=kept,
            )
        return replace(self._then(Select(node, chosen), emitted), has_key=self._keeps_key(chosen))

    def _keeps_key(self, chosen: Sequence[tuple[str, str]]) -> bool:
        """Return whether a select gives the key's name to the key itself."""
        own = {self.key_name.casefold()} if self.has_key else set()
        return any(
            name.casefold() == self.key_name.casefold() and text.strip("`").casefold() in {KEY.name, *own}
            for name, text in chosen
        )

    @property
    def _identifying_columns(self) -> tuple[str, ...]:
        """The columns of the key and the window, which a deleted result keeps."""
        own = {self.key_name.casefold()} if self.has_key else set()
        return tuple(c.name for c in self.columns if c.name in self.window_columns or c.name.casefold() in own)

    def group_by_key(self) -> GroupedStream:
        """Group by the records' key for a stateful step. Raises `InvalidTopology`, also after `process()` (see there)."""
        from tidemark.topology.grouped import GroupedStream

        self.check_key("group_by_key()")
        return GroupedStream(self, None)

    def group_by(self, key: str, name: str | None = None) -> GroupedStream:
        """Group by another key, through a repartition topic: `repartition(key, name).group_by_key()`."""
        return self.repartition(key, name).group_by_key()

    def repartition(self, key: str | None = None, name: str | None = None) -> Stream:
        """Give the records another key, SQL over the columns, through the topic `<app>-<name>-repartition`.

        Without `key`, the records keep their keys. This is for keys that other tasks may own: those that a processor forwarded,
        and those of a source with a `key_serde` other than `string`. Records whose new key is null are dropped, unless a left
        or outer join of streams is downstream. A record without a value stays without one. The topic starts a new sub-topology,
        in which `_timestamp` is the event time. Raises `InvalidTopology`.
        """
        self._check_emits()
        draft = self.draft
        node = draft.node_name("KSTREAM-REPARTITION")
        if key is None:
            if self.source is not None and self.key_serde is KeySerde.STRING:
                raise InvalidTopology(
                    f"{node}: the records come from topic '{self._topic}', partitioned by their keys already; name another key"
                )
            named = ("key", "STRING") if self.rekeyed_by else (self.key_name, self.key_type)
            has_key = self.has_key and not self.rekeyed_by
            expression = KEY.name
        else:
            found = expression_type(key, self.available, f"{node}: key")
            if found.startswith(("ARRAY", "MAP", "STRUCT")) or found == NULL:
                raise InvalidTopology(
                    f"{node}: key: {quoted(key)} is {found}; a key is one value that is not always null"
                )
            expression = key.strip() if found == "STRING" else f"CAST({key.strip()} AS STRING)"
            bare = bare_column(key, self.columns)
            named = (bare.name if bare else "key", found)
            has_key = bare is not None
        shared = f"{self.node}\n{expression}"
        if draft.is_optimised and shared in draft.repartitions:
            topic = draft.repartitions[shared]
        else:
            topic = self._repartition_topic(node, expression, name or node)
            draft.repartitions[shared] = topic
        source = draft.sources[topic]
        return Stream(draft, frozenset([topic]), source.node, self.columns, *named, source, has_key=has_key)

    def _repartition_topic(self, node: str, key: str, name: str) -> str:
        draft = self.draft
        topic = draft.topic(repartition_topic(draft.application_id, name), f"{node}: name")
        draft.check_internal_topic(topic, f"{node}: repartition topic")
        if topic in draft.sources:
            raise InvalidTopology(
                f"{node}: repartition '{name}' already exists: {draft.sources[topic].node} reads topic '{topic}'; "
                f"give another name="
            )
        sink = Sink(draft.node_name("KSTREAM-SINK"), topic, is_repartition=True)
        if self.source is None:
            if key != KEY.name:
                duck_sql(key, self.columns, f"{node}: key")
            mapped = Map(node, (self.node,), self.columns, (), None, None, key)
            draft.add_node(mapped)
            draft.add_node(RowSink(sink.node, (node,), self.columns, (), sink), is_end=True)
        else:
            draft.dead_ends.pop(self.node, None)
            draft.pipeline(self._topic, node, (*self.steps, Rekey(node, key)), self.columns).sinks.append(sink)
        source = Source(draft.node_name("KSTREAM-SOURCE"), topic, self.columns, KEY.name, TIMESTAMP.name)
        draft.add_source(source)
        draft.dead_ends[source.node] = topic
        return topic

    def to_table(self, store: str | Materialized | None = None) -> Table:
        """Return the last record of each key as a table. Raises `InvalidTopology`, also after `process()` (see there)."""
        from tidemark.topology.table import table_of

        self.check_key("to_table()")
        return table_of(self, store)

    def join(
        self,
        other: Stream | Table,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """Join with a stream (each pair of one key at most `within` apart) or with the row of a table at that time.

        `before` and `after` replace `within` on one side each: the other stream's record may be at most that much earlier, or
        later, than this stream's record. The result has the columns of both sides; only the keys may have the same name on
        both. Raises `InvalidTopology`.
        """
        from tidemark.topology.joins import JoinTimes, join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.INNER, JoinTimes(within, before, after, grace), name)

    def left_join(
        self,
        other: Stream | Table,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """Join as `join` does; also emit records of this stream without a partner, with nulls, once none can come any more."""
        from tidemark.topology.joins import JoinTimes, join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.LEFT, JoinTimes(within, before, after, grace), name)

    def outer_join(
        self,
        other: Stream,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """Join as `left_join` does, for the records of both sides."""
        from tidemark.topology.joins import JoinTimes, join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.OUTER, JoinTimes(within, before, after, grace), name)

    def process(
        self,
        processor: str,
        *,
        emits: str | None = None,
        stores: Sequence[DeclaredStore] = (),
        batched: bool = False,
        keeps_key: bool = False,
        on_error: str = "dead_letter",
    ) -> Stream:
        """Run your own `tidemark.processors.Processor`, given by import path, in the task loop.

        `emits` is the schema of the forwarded rows. Without it the processor forwards nothing, and nothing can follow it. A
        processor with stores may be the last node, too. With `batched` the class is an `ArrowProcessor`. `keeps_key` promises
        that it forwards only under each record's own key, as Kafka Streams' `processValues`; another key then stops the
        instance with an error. Without this promise, stateful steps downstream need `repartition()` first, because a record
        with another key belongs to another task. `on_error`: if it raises for a record, the record becomes a dead letter and
        what it did for that record is undone; with `fail` the instance ends. Raises `InvalidTopology`.
        """
        self._check_emits()
        node = self.draft.node_name("KSTREAM-PROCESSOR")
        handler = checked_on_error(on_error, node)
        path = import_path(processor, f"{node}: processor")
        columns = () if emits is None else parse_schema(emits, f"{node}: emits")
        check_row_columns(columns, f"{node}: emits", are_declared=True)
        kept: list[StoreSpec] = []
        if not isinstance(stores, Sequence):
            raise InvalidTopology(
                f"{node}: stores: {stores!r} is not a list; write stores=[store('name', 'column TYPE')]"
            )
        for declared in stores:
            spec = declared_store(self.draft, declared, node)
            kept += with_order(spec, self.draft, node)
        if kept:
            self.check_key(f"{node} with its stores")
        self.enter(node)
        after = self._mapped(
            Process(node, (self.node,), columns, tuple(kept), path, batched, keeps_key, handler),
            is_end=bool(kept) or not columns,
        )
        return replace(
            after,
            rekeyed_by=self.rekeyed_by if keeps_key else node,
            window=None,
            window_columns=frozenset(),
            has_key=False,
        )

    def to(
        self,
        topic: str,
        *,
        partitioner: str | None = None,
        expects: Sequence[Expected] = (),
        windowed_key: bool = False,
        key_serde: str = KeySerde.STRING.value,
        value_serde: str = ValueSerde.JSON.value,
    ) -> Stream:
        """Write each record to a topic, as JSON or Avro, under its key.

        `partitioner` is `sticky`, or the import path of a function `(key, value, partitions) -> partition`; by default the
        partition is murmur2 of the key, as in Java clients. `expects` is a contract of `expect(...)`, which the audit checks.
        With `windowed_key` the record's key consists of key and window, as Kafka Streams' `WindowedSerdes` write it, so that
        a compacted topic keeps every window; the partition is still chosen by the key alone. `key_serde` is the form in which
        the key is written: `string`, `long`, `integer`, `short` or `bytes`, as Java's serializers do. The partition is murmur2
        of these bytes, and `partitioner` gets the key's text. An output whose key has no such form becomes a dead letter.

        With `value_serde="avro"` the value is an Avro record behind the id of its schema, as Confluent's serializers write it.
        The schema has a field for each column, all of which may be null. An instance that starts registers it as the newest
        one of the subject `<topic>-value` in the registry that the setting `schema_registry_url` names, if the subject does not
        have it. `partitioner` gets the value as JSON. Raises `InvalidTopology`.
        """
        self._check_emits()
        node = self.draft.node_name("KSTREAM-SINK")
        serde = checked_key_serde(key_serde, node)
        if windowed_key and serde is not KeySerde.STRING:
            raise InvalidTopology(
                f"{node}: windowed_key=True writes the key as text with its window, key_serde='{key_serde}' without a window; "
                "leave one of the two out"
            )
        form = checked_value_serde(value_serde, node)
        sink = Sink(
            node,
            self.draft.topic(topic, f"{node}: to()"),
            checked_partitioner(partitioner, node),
            expects=checked_expects(expects, self.columns, f"{node}: expects"),
            windowed_key=self._windowed_key(node) if windowed_key else None,
            key_serde=serde,
            value_serde=form,
            value_schema=None if form is ValueSerde.JSON else json.dumps(schema_of_sink(topic, self.columns, node)),
        )
        if self.source is None:
            self.draft.add_node(RowSink(node, (self.node,), self.columns, (), sink), is_end=True)
        else:
            self.draft.pipeline(self._topic, self.node, self.steps, self.columns).sinks.append(sink)
        return self

    def _windowed_key(self, node: str) -> WindowedKey:
        if self.window is None:
            raise InvalidTopology(
                f"{node}: windowed_key=True: the records of {self.node} contain no windows; use windowed_by() before "
                f"the aggregation, and let every select() keep window_start and window_end unchanged, or leave it out"
            )
        return WindowedKey.SESSION if isinstance(self.window, SessionWindow) else WindowedKey.TIME

    def check_key(self, what: str) -> None:
        """Raise `InvalidTopology` if there are no records, or if a task may have some whose keys another task owns."""
        self._check_emits()
        if self.key_serde is not KeySerde.STRING:
            raise InvalidTopology(
                f"{self.node}: {what} keeps state by key, but keys of '{self._topic}' are written as {self.key_serde.value}; "
                f"give them to the tasks that own their text by repartition(name=...) or group_by(...)"
            )
        if self.rekeyed_by is not None:
            raise InvalidTopology(
                f"{self.node}: {what} keeps state by key, but {self.rekeyed_by} may forward records with keys of other "
                f"tasks; put repartition() in between, or promise process(..., keeps_key=True)"
            )

    def _check_emits(self) -> None:
        """Raise `InvalidTopology` if the node is a processor that forwards nothing."""
        if not self.columns:
            raise InvalidTopology(
                f"{self.node}: it emits nothing, so nothing can follow it; declare what it forwards, as in "
                "process(..., emits='column TYPE'), or remove what follows"
            )

    def enter(self, where: str) -> None:
        """Pass the records on to the task loop, where later nodes read them under this node's name.

        Raises `InvalidTopology`.
        """
        check_row_columns(self.columns, where)
        if self.source is not None:
            self.draft.pipeline(self._topic, self.node, self.steps, self.columns).enters = True

    @property
    def _topic(self) -> str:
        (topic,) = self.topics
        return topic

    def _mapped(self, node: Map | Process, *, is_end: bool = False) -> Stream:
        self.draft.add_node(node, is_end=is_end)
        return replace(self, node=node.node, columns=node.columns, source=None, steps=())

    def _then(self, step: Step, columns: tuple[Column, ...]) -> Stream:
        self.draft.dead_ends.pop(self.node, None)
        self.draft.dead_ends[step.node] = self._topic
        return replace(self, node=step.node, columns=columns, steps=(*self.steps, step))


def _columns_of_key(window: AnyWindow) -> tuple[str, ...]:
    """Return the columns that form a windowed key."""
    return ("window_start", "window_end") if isinstance(window, SessionWindow) else ("window_start",)


def checked_on_error(on_error: str, node: str) -> OnError:
    """Parse `dead_letter` or `fail`. Raises `InvalidTopology` on anything else."""
    try:
        return OnError(on_error)
    except ValueError:
        known = " or ".join(f"'{each.value}'" for each in OnError)
        raise InvalidTopology(f"{node}: on_error={on_error!r}; give {known}") from None


def checked_partitioner(partitioner: str | None, node: str) -> str | None:
    """Check that a partitioner is None, `sticky` or an import path, and return it. Raises `InvalidTopology`."""
    if partitioner is None or partitioner == "sticky":
        return partitioner
    try:
        return import_path(partitioner, f"{node}: partitioner")
    except InvalidTopology as error:
        raise InvalidTopology(f"{error}, or 'sticky'") from None
