"""`Topology`: the start of every topology module.

Example: `Topology("patient-monitoring", version="1").stream("pulse-events", schema="...", key="patient_id")`, continued with
the methods of `tidemark.topology.stream`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import pairwise

from tidemark.errors import InvalidTopology
from tidemark.names import (
    changelog_topic,
    commits_topic,
    dlq_topic,
    endpoints_topic,
    events_topic,
    is_legal_name,
    topology_topic,
)
from tidemark.topology.contracts import checked_expects, refuse_different_contracts, refuse_different_types
from tidemark.topology.describe import describe
from tidemark.topology.draft import Draft
from tidemark.topology.key_serde import KeySerde, checked_key_serde
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import Acks, Column, Expected, Guarantee, Process, Sink, Source, TopologyPlan
from tidemark.topology.schema import KEY, RESERVED, TIMESTAMP, parse_schema
from tidemark.topology.sql.expressions import bare_column, expression_type, quoted
from tidemark.topology.sql.types import NULL, UNKNOWN
from tidemark.topology.stores import Materialized, materialized
from tidemark.topology.stream import Stream, checked_on_error
from tidemark.topology.table import Table, table_of
from tidemark.topology.value_serde import ValueSerde, checked_value_serde

_LONGEST_APPLICATION_ID = 100
_MOST_STANDBYS = 16
_NESTED = ("ARRAY", "MAP", "STRUCT")

OPTIMISED: ContextVar[bool | None] = ContextVar("OPTIMISED", default=None)
"""If not None, overrides `Topology(optimised=...)`, so that the same module can be planned both ways."""


class Topology:
    """An application: sources, stateless steps, stores and sinks, checked when they are written."""

    def __init__(
        self,
        application_id: str,
        version: str = "1",
        *,
        guarantee: str = Guarantee.EXACTLY_ONCE.value,
        optimised: bool = False,
        tolerated_broker_failures: int = 0,
        acks: str = Acks.ALL.value,
        num_standby_replicas: int = 0,
    ) -> None:
        """Create the application; its consumer group, topics and state folder are named after it.

        `guarantee` is `exactly_once` or `at_least_once`. With `optimised`, equal repartitions share a topic, and a table's
        topic is its own changelog. `tolerated_broker_failures` is the number of brokers that may be lost at once, while
        nothing acknowledged is lost and the application continues. Tidemark creates its own topics accordingly, an instance
        refuses to start on topics that do not comply, and the durability check compares them. `acks` is what an output waits
        for until it counts as written: `all` in-sync replicas; with `at_least_once` also `1` (its leader) or `0` (no replica).
        Topics on which state depends always wait for all. `num_standby_replicas` is the number of standbys that the stream's
        DAG keeps running beside its instances; each of them holds a copy of every task's stores.

        Raises `InvalidTopology` for a name that Kafka does not accept, and for guarantees that exclude each other.
        """
        if not isinstance(application_id, str) or not is_legal_name(application_id):
            raise InvalidTopology(
                f"application id {application_id!r} cannot be part of topic names; "
                f"use letters, digits, '.', '_' and '-'"
            )
        if len(application_id) > _LONGEST_APPLICATION_ID:
            raise InvalidTopology(
                f"application id {application_id!r} has {len(application_id)} characters; "
                f"use {_LONGEST_APPLICATION_ID} or less, because topic names contain it"
            )
        if not isinstance(version, str) or not is_legal_name(version) or len(version) > 40:
            raise InvalidTopology(
                f"application {application_id}: version {version!r}; "
                f"use a string of 1 to 40 letters, digits, '.', '_', '-'"
            )
        self.application_id = application_id
        self.version = version
        guarantees = {member.value: member for member in Guarantee}
        if not isinstance(guarantee, str) or guarantee not in guarantees:
            raise InvalidTopology(
                f"application {application_id}: guarantee {guarantee!r} is unknown; use {' or '.join(guarantees)}"
            )
        self.guarantee = guarantees[guarantee]
        if (
            isinstance(tolerated_broker_failures, bool)
            or not isinstance(tolerated_broker_failures, int)
            or tolerated_broker_failures < 0
        ):
            raise InvalidTopology(
                f"application {application_id}: tolerated_broker_failures={tolerated_broker_failures!r} is not a number of "
                "brokers; use 0, or 1 with 3 replicas"
            )
        self.tolerated_broker_failures = tolerated_broker_failures
        self.acks = _acks(application_id, acks, self.guarantee, tolerated_broker_failures)
        self.num_standby_replicas = _num_standby_replicas(application_id, num_standby_replicas)
        decided = OPTIMISED.get()
        self._draft = Draft(application_id, optimised if decided is None else decided)

    @property
    def is_optimised(self) -> bool:
        """True if equal repartitions share a topic, and a table's topic is its own changelog."""
        return self._draft.is_optimised

    def stream(
        self,
        topic: str,
        *,
        schema: str,
        key: str = KEY.name,
        timestamp: str = TIMESTAMP.name,
        expects: Sequence[Expected] = (),
        on_error: str = "dead_letter",
        key_serde: str = KeySerde.STRING.value,
        value_serde: str = ValueSerde.JSON.value,
    ) -> Stream:
        """Read a topic of JSON or Avro records.

        `key` is SQL for the record's key. It must give the same text as the record's own Kafka key (`_key`, the default),
        because records are distributed over tasks by that key. A record for which it does not becomes a dead letter if a node
        keeps state by the key. `timestamp` is SQL for the event time, BIGINT epoch milliseconds or TIMESTAMP; the default is
        the record's own Kafka timestamp. Besides the schema's columns, expressions may name `_key`, `_topic`, `_partition`,
        `_offset` and `_timestamp`. `expects` is a contract of `expect(...)`, which the audit checks. `on_error`: a record that
        cannot be read becomes a dead letter; with `fail` the instance ends.

        `key_serde` is the form in which the topic's keys are written: `string` (UTF-8, also for UUIDs), `long`, `integer`,
        `short` or `bytes`, as Java's serializers do. `_key` is then decimal or hexadecimal text. Tasks own keys by their text,
        so a node that keeps state by the key needs `repartition(name=...)` or `group_by(...)` first, unless it is `string`.

        `value_serde` is the form in which the topic's values are written: `json`, or `avro` with the ids of a schema registry,
        as Confluent's serializers do. A column of the schema is the field with its name in the schema with which the record
        was written, and null if that has none. The setting `schema_registry_url` names the registry.

        Reading the same topic again with the same arguments returns the same source. Raises `InvalidTopology`.
        """
        return self._source(topic, schema, key, timestamp, expects, on_error, key_serde, value_serde, is_table=False)

    def table(
        self,
        topic: str,
        *,
        schema: str,
        key: str | None = None,
        timestamp: str = TIMESTAMP.name,
        store: str | Materialized | None = None,
        expects: Sequence[Expected] = (),
        on_error: str = "dead_letter",
        value_serde: str = ValueSerde.JSON.value,
    ) -> Table:
        """Read a topic as a table: the last record of each key. A record without a value deletes its key.

        The key is the record's own (`_key`), because a deletion has nothing else; `key` names the column that repeats it, so
        that joins know its name and type. With `Topology(optimised=True)` the topic itself is the changelog of the store, so
        it must be compacted; a topic of Avro records is not, because standbys read changelogs without Spark. `expects`,
        `on_error` and `value_serde` are as in `stream`. Keys are UTF-8 text: read a topic with other keys as a stream, with its
        `key_serde`, and continue with `repartition(name=...).to_table(store)`. Raises `InvalidTopology`.
        """
        text = KeySerde.STRING.value
        stream = self._source(topic, schema, KEY.name, timestamp, expects, on_error, text, value_serde, is_table=True)
        if key is not None:
            named = bare_column(key, stream.columns) if isinstance(key, str) else None
            if named is None:
                known = ", ".join(column.name for column in stream.columns)
                raise InvalidTopology(f"{stream.node}: key {key!r} is not a column of the table; use one of {known}")
            stream = replace(stream, key_name=named.name, key_type=named.type, has_key=True)
        kept = materialized(store)
        # A key that expires or is evicted would be written as a deletion, which the user's topic must not receive.
        shares = (
            self._draft.is_optimised
            and kept.logging
            and kept.ttl is None
            and kept.max_entries is None
            and value_serde == ValueSerde.JSON.value
        )
        return table_of(stream, store, topic if shares else None)

    def _source(
        self,
        topic: str,
        schema: str,
        key: str,
        timestamp: str,
        expects: Sequence[Expected],
        on_error: str,
        key_serde: str,
        value_serde: str,
        *,
        is_table: bool,
    ) -> Stream:
        known = self._draft.sources.get(topic) if isinstance(topic, str) else None
        node = known.node if known else self._draft.node_name("KSTREAM-SOURCE")
        if topic in self._draft.repartitions.values():
            raise InvalidTopology(
                f"{node}: topic '{topic}' is internal, for a repartition; continue with the result of repartition()"
            )
        columns = parse_schema(schema, f"{node}: schema")
        available = (*columns, *RESERVED)
        expression, key_type = _key(key, available, f"{node}: key")
        serde = checked_key_serde(key_serde, node)
        if serde is not KeySerde.STRING and expression != KEY.name:
            raise InvalidTopology(
                f"{node}: key={key!r} must be the key by whose text a task owns the record, but keys of '{topic}' are written "
                f"as {serde.value}; leave key= out, and name the key by repartition({key!r}, name=...) or group_by({key!r})"
            )
        source = Source(
            node,
            self._draft.topic(topic, f"{node}: {'table' if is_table else 'stream'}()"),
            columns,
            expression,
            _timestamp(timestamp, available, f"{node}: timestamp"),
            is_table,
            checked_expects(expects, columns, f"{node}: expects"),
            checked_on_error(on_error, node),
            key_serde=serde,
            value_serde=checked_value_serde(value_serde, node),
        )
        if known and known.is_table != is_table:
            raise InvalidTopology(
                f"{node}: topic '{topic}' is read as a stream and as a table; read it once as a stream, and create the table "
                f"with to_table()"
            )
        if known and known != source:
            raise InvalidTopology(
                f"{node}: topic '{topic}' is read twice with different schema, key, key_serde, value_serde, timestamp, "
                f"contract or on_error; read it once and continue that stream twice"
            )
        if not known:
            self._draft.add_source(source)
            self._draft.dead_ends[node] = topic
        named = bare_column(key, columns)
        key_name = named.name if named else "key"
        has_key = named is not None
        return Stream(
            self._draft, frozenset([topic]), node, columns, key_name, key_type, source, has_key=has_key, key_serde=serde
        )

    def plan(self) -> TopologyPlan:
        """Freeze the whole application. Raises `InvalidTopology` for errors that only the whole shows."""
        draft = self._draft
        if not draft.sources:
            raise InvalidTopology(f"application {self.application_id}: it is empty; start with topology.stream(...)")
        processors = {node.node for node in draft.nodes if isinstance(node, Process)}
        for node, topic in draft.dead_ends.items():
            read = f"what it reads from topic '{topic}'" if topic else "what it emits"
            remedy = "leave emits= out if it forwards nothing" if node in processors else "remove it"
            raise InvalidTopology(
                f"{node}: nothing uses {read}; continue with .to(...) or .group_by_key() and an aggregation, or {remedy}"
            )
        subtopologies = draft.sub_topologies()
        plan = TopologyPlan(
            self.application_id,
            self.version,
            self.guarantee,
            subtopologies,
            tolerated_broker_failures=self.tolerated_broker_failures,
            acks=self.acks,
            num_standby_replicas=self.num_standby_replicas,
        )
        _refuse_internal_topics(plan)
        _refuse_useless_standbys(plan)
        _refuse_loops(plan)
        _refuse_mixed_forms(plan)
        refuse_different_contracts(plan)
        refuse_different_types(plan)
        for subtopology in subtopologies:
            RecordPaths(subtopology).check()
        return plan

    def describe(self) -> str:
        """Return the topology as text, in the format of Kafka Streams' `TopologyDescription`. Raises `InvalidTopology`."""
        return describe(self.plan())


def _acks(application_id: str, acks: str, guarantee: Guarantee, tolerated_broker_failures: int) -> Acks:
    """Parse `acks`. Raises `InvalidTopology` if it contradicts the guarantee or `tolerated_broker_failures`."""
    known = {member.value: member for member in Acks}
    if not isinstance(acks, str) or acks not in known:
        raise InvalidTopology(
            f"application {application_id}: acks={acks!r} is unknown; use {', '.join(map(repr, known))}"
        )
    found = known[acks]
    if found is not Acks.ALL and guarantee is Guarantee.EXACTLY_ONCE:
        raise InvalidTopology(
            f"application {application_id}: acks={acks!r} with exactly_once: a transaction waits for all replicas in sync; "
            "leave acks out, or use guarantee='at_least_once'"
        )
    if found is not Acks.ALL and tolerated_broker_failures:
        raise InvalidTopology(
            f"application {application_id}: acks={acks!r} with tolerated_broker_failures={tolerated_broker_failures}: outputs "
            "that only a leader has are lost with its broker; leave one of the two out"
        )
    return found


def _num_standby_replicas(application_id: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST_STANDBYS:
        raise InvalidTopology(
            f"application {application_id}: num_standby_replicas={number!r} is not a number of standbys; use 0 for none, or 1 "
            f"to {_MOST_STANDBYS}"
        )
    return number


def _refuse_useless_standbys(plan: TopologyPlan) -> None:
    """Raise `InvalidTopology` if standbys are asked for, but no store can be copied."""
    why = {store.name: store.uncopied for store in plan.stores}
    if plan.num_standby_replicas == 0 or None in why.values():
        return
    stores = ", ".join(f"{name} ({reason})" for name, reason in why.items()) or "it has none"
    raise InvalidTopology(
        f"application {plan.application_id}: num_standby_replicas={plan.num_standby_replicas}, but a standby could copy none "
        f"of its stores: {stores}; leave it out, or keep a store in RocksDB and log it"
    )


def _key(text: str, columns: tuple[Column, ...], where: str) -> tuple[str, str]:
    """Return the key as an expression of type STRING, and its original type."""
    found = expression_type(text, columns, where)
    if found.startswith(_NESTED):
        raise InvalidTopology(f"{where}: {quoted(text)} is {found}; a key is one value, so pick a field")
    if found == NULL:
        raise InvalidTopology(f"{where}: {quoted(text)} is always null; name a column that identifies the record")
    return (text.strip() if found == "STRING" else f"CAST({text.strip()} AS STRING)"), found


def _timestamp(text: str, columns: tuple[Column, ...], where: str) -> str:
    found = expression_type(text, columns, where)
    if found == "BIGINT":
        return text.strip()
    if found == "TIMESTAMP":
        return f"unix_millis({text.strip()})"
    as_bigint, as_timestamp = (f"CAST({text.strip()} AS {kind})" for kind in ("BIGINT", "TIMESTAMP"))
    # Spark takes a number that is cast to TIMESTAMP for seconds.
    remedy = as_timestamp if found in ("STRING", "DATE", "TIMESTAMP_NTZ") else as_bigint
    if found == UNKNOWN:
        remedy = f"{as_bigint} if it is a number of milliseconds, or {as_timestamp} if it is a text or a date"
    raise InvalidTopology(
        f"{where}: {quoted(text)} is {found}, not BIGINT epoch milliseconds or TIMESTAMP; convert it, e.g. {remedy}"
    )


def _refuse_internal_topics(plan: TopologyPlan) -> None:
    """Raise `InvalidTopology` if a user's topic has the name of an internal topic of the application."""
    application_id = plan.application_id
    internal: dict[str, str] = {changelog_topic(application_id, s.name): f"store '{s.name}'" for s in plan.stores}
    internal |= {commits_topic(application_id): "commit records", dlq_topic(application_id): "dead letters"}
    internal[events_topic(application_id)] = "its instances' events"
    internal[topology_topic(application_id)] = "the description of its state"
    internal[endpoints_topic(application_id)] = "the addresses of its queries"
    repartitions = dict.fromkeys(plan.repartition_topics, "a repartition")
    for subtopology in plan.subtopologies:
        for source in subtopology.sources:
            _refuse_topic(source.node, source.topic, internal)
        for sink in subtopology.sinks:
            if not sink.is_repartition:
                _refuse_topic(sink.node, sink.topic, internal | repartitions)


def _refuse_topic(node: str, topic: str, internal: Mapping[str, str]) -> None:
    if topic in internal:
        raise InvalidTopology(
            f"{node}: topic '{topic}' is internal to the application, for {internal[topic]}; use another topic"
        )


def _refuse_loops(plan: TopologyPlan) -> None:
    """Raise `InvalidTopology` if output comes back as input, which would feed itself for ever."""
    after = _edges(plan)
    for subtopology in plan.subtopologies:
        for source in subtopology.sources:
            reached, new = set[str](), set(after[source.node])
            while new:
                reached |= new
                new = {node for known in new for node in after[known]} - reached
            if source.node in reached:
                raise InvalidTopology(
                    f"{source.node}: topic '{source.topic}' is read and, directly or not, written by the same "
                    f"application, which is a loop; write to another topic"
                )
        for sink in subtopology.sinks:
            # Its number of partitions would depend on itself.
            if sink.is_repartition and sink.topic in subtopology.source_topics:
                raise InvalidTopology(
                    f"{sink.node}: the records of the repartition topic '{sink.topic}' are joined with the records that "
                    f"they come from; send them through your own topic: to('...'), and read it with stream('...')"
                )


def _refuse_mixed_forms(plan: TopologyPlan) -> None:
    """Raise `InvalidTopology` if two nodes read or write the keys or the values of one topic in different forms."""
    known: dict[str, Source | Sink] = {}
    nodes: list[Source | Sink] = [source for s in plan.subtopologies for source in s.sources]
    nodes += [sink for s in plan.subtopologies for sink in s.sinks]
    for node in nodes:
        other = known.setdefault(node.topic, node)
        for name in ("key_serde", "value_serde"):
            form, others = getattr(node, name), getattr(other, name)
            if form is not others:
                raise InvalidTopology(
                    f"{node.node}: {name}='{form.value}' for topic '{node.topic}', but {other.node} has "
                    f"{name}='{others.value}' for it; give both the same, or use another topic"
                )


def _edges(plan: TopologyPlan) -> Mapping[str, set[str]]:
    """Return, by node, the nodes that take its output. A sink leads to the source that reads its topic."""
    after: defaultdict[str, set[str]] = defaultdict(set)
    readers = {source.topic: source.node for s in plan.subtopologies for source in s.sources}
    for subtopology in plan.subtopologies:
        for pipeline in subtopology.pipelines:
            path = [subtopology.sources[pipeline.source].node, *(step.node for step in pipeline.steps), pipeline.end]
            path += [pipeline.aggregation.node] if pipeline.aggregation else []
            for before, node in pairwise(path):
                after[before].add(node)
            after[pipeline.end] |= {sink.node for sink in pipeline.sinks}
        for row_node in subtopology.nodes:
            for before in row_node.inputs:
                after[before].add(row_node.node)
        for sink in subtopology.sinks:
            if sink.topic in readers:
                after[sink.node].add(readers[sink.topic])
    # A step may be the end of its pipeline.
    return defaultdict(set, {node: following - {node} for node, following in after.items()})
