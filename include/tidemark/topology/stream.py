"""Streams and grouped streams: the words in which a topology is written after `Topology.stream()`.

Every word returns a new handle, so a stream can be continued more than once: two aggregations of one stream are two
branches of one sub-topology. Steps before the first stateful node run in Spark, those behind it in the task loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.errors import InvalidTopology
from tidemark.names import repartition_topic
from tidemark.topology.aggregates import aggregate_name, named_expression
from tidemark.topology.behind import duck_sql
from tidemark.topology.contracts import checked_expects
from tidemark.topology.draft import Draft, check_row_columns
from tidemark.topology.plan import (
    EVENT_TIME,
    Column,
    Expected,
    Filter,
    Map,
    Process,
    Rekey,
    RowSink,
    Select,
    Sink,
    Source,
    Step,
    StoreSpec,
)
from tidemark.topology.schema import KEY, RESERVED, parse_schema
from tidemark.topology.sql import UNKNOWN, bare_column, expression_type, quoted
from tidemark.topology.stores import DeclaredStore, declared_store, import_path, with_order

if TYPE_CHECKING:
    from tidemark.topology.durations import Duration
    from tidemark.topology.grouped import GroupedStream
    from tidemark.topology.stores import Materialized
    from tidemark.topology.table import Table


@dataclass(frozen=True)
class Stream:
    """Records after some stateless steps.

    `source` is None behind a stateful node. `columns` are the record's fields; on a source, until a `select`, expressions
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

    @property
    def available(self) -> tuple[Column, ...]:
        """What the next expression may name."""
        if self.source is None or any(isinstance(step, Select) for step in self.steps):
            return self.columns
        return (*self.columns, *RESERVED)

    def filter(self, condition: str) -> Stream:
        """Keep the records for which the SQL condition is true. Raises `InvalidTopology`."""
        node = self.draft.node_name("KSTREAM-FILTER")
        found = expression_type(condition, self.available, f"{node}: filter condition")
        if found not in ("BOOLEAN", UNKNOWN):
            raise InvalidTopology(
                f"{node}: filter condition: {quoted(condition)} is {found}, not BOOLEAN; compare it with something"
            )
        if self.source is None:
            duck_sql(condition, self.columns, f"{node}: filter condition")
            return self._mapped(Map(node, (self.node,), self.columns, (), condition.strip(), None, None))
        return self._then(Filter(node, condition.strip()), self.columns)

    def select(self, *columns: str, **named: str) -> Stream:
        """Replace the columns by `"expr AS name"`, plain column names, or `name="expr"`; key and timestamp stay.

        Raises `InvalidTopology`.
        """
        node = self.draft.node_name("KSTREAM-MAPVALUES")
        pairs = [named_expression(text, self.available, f"{node}: select") for text in columns]
        pairs += [(aggregate_name(name, f"{node}: select"), text) for name, text in named.items()]
        if not pairs:
            raise InvalidTopology(f"{node}: select() names no column; name one or leave the select out")
        selected: dict[str, Column] = {}
        for name, text in pairs:
            if name.casefold() in selected:
                raise InvalidTopology(f"{node}: select: column '{name}' stands twice; rename one")
            if name.casefold() in {reserved.name for reserved in RESERVED}:
                raise InvalidTopology(
                    f"{node}: select: '{name}' is reserved for the record's own; write '{name} AS another_name'"
                )
            found = expression_type(text, self.available, f"{node}: select {name}")
            if found in (UNKNOWN, "NULL"):
                raise InvalidTopology(
                    f"{node}: select {name}: the type of {quoted(text)} cannot be told before it runs; "
                    f"cast it explicitly, e.g. CAST({text.strip()} AS STRING)"
                )
            selected[name.casefold()] = Column(name, found)
        chosen = tuple((name, text.strip()) for name, text in pairs)
        emitted = tuple(selected.values())
        if self.source is None:
            check_row_columns(emitted, f"{node}: select")
            for name, text in chosen:
                duck_sql(text, self.columns, f"{node}: select {name}")
            return self._mapped(Map(node, (self.node,), emitted, (), None, chosen, None))
        return self._then(Select(node, chosen), emitted)

    def group_by_key(self) -> GroupedStream:
        """Group by the records' key; what follows is stateful."""
        from tidemark.topology.grouped import GroupedStream

        return GroupedStream(self, None)

    def group_by(self, key: str, name: str | None = None) -> GroupedStream:
        """Group by another key, through a repartition topic: `repartition(key, name).group_by_key()`."""
        return self.repartition(key, name).group_by_key()

    def repartition(self, key: str, name: str | None = None) -> Stream:
        """Give the records another key, SQL over the columns, through the topic `<app>-<name>-repartition`.

        Records whose new key is null are left out, as in Kafka Streams. What follows is a sub-topology of its own. Raises
        `InvalidTopology`.
        """
        draft = self.draft
        node = draft.node_name("KSTREAM-REPARTITION")
        found = expression_type(key, self.available, f"{node}: key")
        if found.startswith(("ARRAY", "MAP", "STRUCT")) or found == "NULL":
            raise InvalidTopology(f"{node}: key: {quoted(key)} is {found}; a key is one value that is not always null")
        expression = key.strip() if found == "STRING" else f"CAST({key.strip()} AS STRING)"
        shared = f"{self.node}\n{expression}"
        if draft.is_optimised and shared in draft.repartitions:
            topic = draft.repartitions[shared]
        else:
            topic = self._repartition_topic(node, expression, name or node)
            draft.repartitions[shared] = topic
        source = draft.sources[topic]
        bare = bare_column(key, self.columns)
        return Stream(
            draft, frozenset([topic]), source.node, self.columns, bare.name if bare else "key", found, source, ()
        )

    def _repartition_topic(self, node: str, key: str, name: str) -> str:
        draft = self.draft
        topic = draft.topic(repartition_topic(draft.application_id, name), f"{node}: name")
        draft.check_internal_topic(topic, f"{node}: repartition topic")
        if topic in draft.sources:
            raise InvalidTopology(
                f"{node}: repartition '{name}' exists already: {draft.sources[topic].node} reads topic '{topic}'; "
                f"give another name="
            )
        if any(column.name.casefold() == EVENT_TIME for column in self.columns):
            raise InvalidTopology(f"{node}: column '{EVENT_TIME}' is reserved for the record's time; rename it")
        sink = Sink(draft.node_name("KSTREAM-SINK"), topic, is_repartition=True)
        if self.source is None:
            duck_sql(key, self.columns, f"{node}: key")
            mapped = Map(node, (self.node,), self.columns, (), None, None, key)
            draft.add_node(mapped)
            draft.add_node(RowSink(sink.node, (node,), self.columns, (), sink), is_end=True)
        else:
            draft.dead_ends.pop(self.node, None)
            draft.branch(self._topic, node, (*self.steps, Rekey(node, key)), self.columns).sinks.append(sink)
        schema = (*self.columns, Column(EVENT_TIME, "BIGINT"))
        source = Source(draft.node_name("KSTREAM-SOURCE"), topic, schema, KEY.name, EVENT_TIME)
        draft.add_source(source)
        draft.dead_ends[source.node] = topic
        return topic

    def to_table(self, store: str | Materialized | None = None) -> Table:
        """The last record of each key as a table. Raises `InvalidTopology`."""
        from tidemark.topology.table import table_of

        return table_of(self, store)

    def join(
        self, other: Stream | Table, *, within: Duration | None = None, grace: Duration = 0, name: str | None = None
    ) -> Stream:
        """Each pair of records of one key: at most `within` apart (streams), or with the table's row of then.

        The columns of both; a name that stands on both sides must be the key's. Raises `InvalidTopology`.
        """
        from tidemark.topology.joins import join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.INNER, within, grace, name)

    def left_join(
        self, other: Stream | Table, *, within: Duration | None = None, grace: Duration = 0, name: str | None = None
    ) -> Stream:
        """As `join`, and records of this stream without a partner, with nulls: once no partner can come any more."""
        from tidemark.topology.joins import join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.LEFT, within, grace, name)

    def outer_join(
        self, other: Stream, *, within: Duration | None = None, grace: Duration = 0, name: str | None = None
    ) -> Stream:
        """As `left_join`, for both sides."""
        from tidemark.topology.joins import join_stream
        from tidemark.topology.plan import JoinKind

        return join_stream(self, other, JoinKind.OUTER, within, grace, name)

    def process(
        self, processor: str, *, emits: str, stores: Sequence[DeclaredStore] = (), batched: bool = False
    ) -> Stream:
        """Run your own `tidemark.processors.Processor`, given by import path, on the task loop.

        `emits` is the schema of what it forwards. `batched`: it is an `ArrowProcessor`. Raises `InvalidTopology`.
        """
        node = self.draft.node_name("KSTREAM-PROCESSOR")
        path = import_path(processor, f"{node}: processor")
        columns = parse_schema(emits, f"{node}: emits")
        check_row_columns(columns, f"{node}: emits", are_declared=True)
        kept: list[StoreSpec] = []
        if not isinstance(stores, Sequence):
            raise InvalidTopology(
                f"{node}: stores: {stores!r} is not a list; write stores=[store('name', 'column TYPE')]"
            )
        for declared in stores:
            spec = declared_store(self.draft, declared, node)
            kept += with_order(spec, self.draft, node)
        self.enter(node)
        return self._mapped(Process(node, (self.node,), columns, tuple(kept), path, batched))

    def to(self, topic: str, *, partitioner: str | None = None, expects: Sequence[Expected] = ()) -> Stream:
        """Write each record as JSON to a topic, under its key.

        `partitioner`: `sticky`, or the import path of a function `(key, value, partitions) -> partition`; murmur2 of the
        key otherwise, as Java clients do. `expects`: a contract of `expect(...)` that the audit looks after. Raises
        `InvalidTopology`.
        """
        node = self.draft.node_name("KSTREAM-SINK")
        sink = Sink(
            node,
            self.draft.topic(topic, f"{node}: to()"),
            checked_partitioner(partitioner, node),
            expects=checked_expects(expects, self.columns, f"{node}: expects"),
        )
        if self.source is None:
            self.draft.add_node(RowSink(node, (self.node,), self.columns, (), sink), is_end=True)
        else:
            self.draft.branch(self._topic, self.node, self.steps, self.columns).sinks.append(sink)
        return self

    def enter(self, where: str) -> None:
        """The records themselves go on in the task loop, under the name of this node. Raises `InvalidTopology`."""
        check_row_columns(self.columns, where)
        if self.source is not None:
            self.draft.branch(self._topic, self.node, self.steps, self.columns).enters = True

    @property
    def _topic(self) -> str:
        (topic,) = self.topics
        return topic

    def _mapped(self, node: Map | Process) -> Stream:
        self.draft.add_node(node)
        return replace(self, node=node.node, columns=node.columns, source=None, steps=())

    def _then(self, step: Step, columns: tuple[Column, ...]) -> Stream:
        self.draft.dead_ends.pop(self.node, None)
        self.draft.dead_ends[step.node] = self._topic
        return replace(self, node=step.node, columns=columns, steps=(*self.steps, step))


def checked_partitioner(partitioner: str | None, node: str) -> str | None:
    """None, `sticky` or an import path. Raises `InvalidTopology`."""
    if partitioner is None or partitioner == "sticky":
        return partitioner
    try:
        return import_path(partitioner, f"{node}: partitioner")
    except InvalidTopology as error:
        raise InvalidTopology(f"{error}, or 'sticky'") from None
