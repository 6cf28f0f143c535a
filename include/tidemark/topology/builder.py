"""`Topology`: the start of every topology module.

`Topology("patient-monitoring", version="1").stream("pulse-events", schema="...", key="patient_id")` and so on, in the
words of `tidemark.topology.stream`.
"""

from __future__ import annotations

from tidemark.errors import InvalidTopology
from tidemark.names import changelog_topic, commits_topic, dlq_topic, is_legal_name
from tidemark.topology.describe import describe
from tidemark.topology.draft import Draft
from tidemark.topology.plan import Column, Source, SubTopology, TopologyPlan
from tidemark.topology.schema import KEY, RESERVED, TIMESTAMP, parse_schema
from tidemark.topology.sql import bare_column, expression_type, quoted
from tidemark.topology.stream import Stream

_LONGEST_APPLICATION_ID = 100
_NESTED = ("ARRAY", "MAP", "STRUCT")


class Topology:
    """An application: sources, stateless steps, stores and sinks, checked as they are written."""

    def __init__(self, application_id: str, version: str = "1") -> None:
        """Name the application: its consumer group, its topics and its state folder are named after it.

        Raises `InvalidTopology` for a name Kafka would not take.
        """
        if not isinstance(application_id, str) or not is_legal_name(application_id):
            raise InvalidTopology(
                f"application id {application_id!r} cannot be part of topic names; "
                f"use letters, digits, '.', '_' and '-'"
            )
        if len(application_id) > _LONGEST_APPLICATION_ID:
            raise InvalidTopology(
                f"application id {application_id!r} has {len(application_id)} characters; "
                f"use {_LONGEST_APPLICATION_ID} or less, since topic names are made of it"
            )
        if not isinstance(version, str) or not is_legal_name(version) or len(version) > 40:
            raise InvalidTopology(
                f"application {application_id}: version {version!r}; "
                f"use a string of 1 to 40 letters, digits, '.', '_', '-'"
            )
        self.application_id = application_id
        self.version = version
        self._draft = Draft(application_id)

    def stream(self, topic: str, *, schema: str, key: str = KEY.name, timestamp: str = TIMESTAMP.name) -> Stream:
        """Read a topic of JSON records.

        `key` is SQL for the record's key and must give the same text as the record's own Kafka key (`_key`, the
        default), because records are spread over tasks by it. `timestamp` is SQL for the event's time, BIGINT
        epoch milliseconds or TIMESTAMP; the record's own Kafka timestamp by default. Besides the schema's columns,
        expressions may name `_key`, `_topic`, `_partition`, `_offset` and `_timestamp`.

        The same topic with the same arguments again is the same source. Raises `InvalidTopology`.
        """
        known = self._draft.sources.get(topic) if isinstance(topic, str) else None
        node = known.node if known else self._draft.node_name("KSTREAM-SOURCE")
        columns = parse_schema(schema, f"{node}: schema")
        available = (*columns, *RESERVED)
        source = Source(
            node,
            self._draft.topic(topic, f"{node}: stream()"),
            columns,
            _key(key, available, f"{node}: key"),
            _timestamp(timestamp, available, f"{node}: timestamp"),
        )
        if known and known != source:
            raise InvalidTopology(
                f"{node}: topic '{topic}' is read twice with different schema, key or timestamp; "
                f"read it once and continue that stream twice"
            )
        if not known:
            self._draft.sources[topic] = source
            named = bare_column(key, columns)
            self._draft.key_names[topic] = named.name if named else "key"
            self._draft.dead_ends[node] = topic
        return Stream(self._draft, source, node, (), columns)

    def plan(self) -> TopologyPlan:
        """The whole application, frozen. Raises `InvalidTopology` for what only shows in the whole."""
        draft = self._draft
        if not draft.sources:
            raise InvalidTopology(f"application {self.application_id}: nothing in it; start with topology.stream(...)")
        for node, topic in draft.dead_ends.items():
            raise InvalidTopology(
                f"{node}: what it reads from topic '{topic}' goes nowhere; continue with .to(...) or "
                f".group_by_key() and an aggregation, or remove it"
            )
        subtopologies = tuple(
            SubTopology(index, source, tuple(b.plan() for b in draft.branches if b.source == source))
            for index, source in enumerate(draft.sources.values())
        )
        plan = TopologyPlan(self.application_id, self.version, subtopologies)
        _refuse_internal_topics(plan)
        _refuse_loops(plan)
        return plan

    def describe(self) -> str:
        """The topology as text, in the words of Kafka Streams' `TopologyDescription`. Raises `InvalidTopology`."""
        return describe(self.plan())


def _key(text: str, columns: tuple[Column, ...], where: str) -> str:
    found = expression_type(text, columns, where)
    if found.startswith(_NESTED):
        raise InvalidTopology(f"{where}: {quoted(text)} is {found}; a key is one value, so pick a field")
    if found == "NULL":
        raise InvalidTopology(f"{where}: {quoted(text)} is always null; name a column that identifies the record")
    return text.strip() if found == "STRING" else f"CAST({text.strip()} AS STRING)"


def _timestamp(text: str, columns: tuple[Column, ...], where: str) -> str:
    found = expression_type(text, columns, where)
    if found == "BIGINT":
        return text.strip()
    if found == "TIMESTAMP":
        return f"unix_millis({text.strip()})"
    raise InvalidTopology(
        f"{where}: {quoted(text)} is {found}, not BIGINT epoch milliseconds or TIMESTAMP; "
        f"convert it, e.g. CAST({text.strip()} AS {'BIGINT' if found in ('INT', 'FLOAT', 'DOUBLE') else 'TIMESTAMP'})"
    )


def _refuse_internal_topics(plan: TopologyPlan) -> None:
    """A user's topic must not be one that Tidemark keeps for the application itself."""
    application_id = plan.application_id
    internal: dict[str, str] = {changelog_topic(application_id, s.name): f"store '{s.name}'" for s in plan.stores}
    internal |= {commits_topic(application_id): "commit records", dlq_topic(application_id): "bad records"}
    for subtopology in plan.subtopologies:
        sinks = [s for b in subtopology.branches for s in (*b.sinks, *(b.aggregation.sinks if b.aggregation else ()))]
        used = [(subtopology.source.node, subtopology.source.topic), *((sink.node, sink.topic) for sink in sinks)]
        for node, topic in used:
            if topic in internal:
                raise InvalidTopology(
                    f"{node}: topic '{topic}' is the application's own, for {internal[topic]}; use another topic"
                )


def _refuse_loops(plan: TopologyPlan) -> None:
    """Output that comes back as input would feed itself for ever."""
    writes = {s.source.topic: s.sink_topics for s in plan.subtopologies}
    for subtopology in plan.subtopologies:
        start = subtopology.source.topic
        reached, new = set[str](), set(writes[start])
        while new:
            reached |= new
            new = {topic for known in new for topic in writes.get(known, ())} - reached
        if start in reached:
            raise InvalidTopology(
                f"{subtopology.source.node}: topic '{start}' is read and, directly or not, written by the same "
                f"application, which is a loop; write to another topic"
            )
