"""Avro values of Kafka records as JSON, in Spark's generated code (`docs/decisions/0038-avro-is-read-as-json.md`).

Statements read JSON. For sources of Avro they read a view in which each value is the JSON of its record, with the fields that
the source's schema names. Spark's own reader decodes a record with the schema whose id is in front of it.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.avro_reading_schema import READ, reading_schema
from spark_jobs.refused_records import SPARK_ERRORS
from spark_jobs.sql_text import literal, quoted
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.avro_schema import MALFORMED, AvroSchema
from tidemark.topology.plan import Column, Sink, Source
from tidemark.topology.value_serde import ValueSerde

if TYPE_CHECKING:
    from tidemark.kafka.schema_registry import SchemaRegistry

log = logging.getLogger(__name__)

_PREFIX_BYTES = 5
"""A zero byte, and the id of the schema in four bytes, the most significant one first."""
_NOT_AVRO = "not Avro with a known schema"
"""The value of a record that cannot be decoded. It is no JSON, so the record is unparsable."""
_ASK_AGAIN_S = 60.0
_MOST_AT_ONCE = 1000
_TOLD_CHARACTERS = 500
_LOCAL_TIME = r"yyyy-MM-dd\'T\'HH:mm:ss.SSSSSS"
_JSON_OPTIONS = f"map('timestampFormat', '{_LOCAL_TIME}XXX', 'timestampNTZFormat', '{_LOCAL_TIME}')"
_NO_RECORD = "(SELECT X'' AS value)"
_numbers = itertools.count()

_Named = tuple[str, int]
"""A topic, and the id of a schema that a record of it names."""


class _Decoder(NamedTuple):
    """The SQL for the records of a topic with one schema, which is made once.

    `struct_sql` is the struct of the fields that are read and `READ`, all null if the value cannot be decoded. `record_sql` is
    the same for records of this topic and schema, else null. `json_sql` is the JSON of this struct as column `record`.
    """

    record: str
    struct_sql: str
    record_sql: str
    json_sql: str


class AvroValues:
    """The values of some topics, by the schemas that their records have named so far. Used by one thread at a time.

    Schemas do not change once they have an id, so what was learnt stays valid.
    """

    def __init__(
        self, topics: Mapping[str, Sequence[Column]], registry: Callable[[], SchemaRegistry], spark: SparkSession
    ) -> None:
        """`topics` are those with Avro values, with the columns that are read from each. `registry` is called if there are any.

        Raises what `registry` raises.
        """
        self._topics = topics
        self._spark = spark
        self._registry = registry() if topics else None
        self._decoders: dict[_Named, _Decoder] = {}
        self._unreadable: dict[_Named, float] = {}
        """What the registry or Spark could not read, and when."""
        self._refused: dict[TopicPartition, set[int]] = {}
        """The offsets of the records whose values Spark refuses to decode."""

    @classmethod
    def of(
        cls, sources: Iterable[Source], settings: Settings, spark: SparkSession, *, sinks: Iterable[Sink] = ()
    ) -> AvroValues:
        """Return the values of some sources and sinks.

        Raises `InvalidSettings` if one of them has Avro, and the settings name no registry.
        """
        topics = {source.topic: source.schema for source in sources if source.value_serde is ValueSerde.AVRO}
        written = {sink.topic: sink.value_schema for sink in sinks if sink.value_schema is not None}
        # The audit takes a topic that the application also reads for a source.
        topics = {topic: _columns_of(json.loads(schema)) for topic, schema in written.items()} | topics

        def registry() -> SchemaRegistry:
            # Its client takes 0.4 s to import.
            from tidemark.kafka.schema_registry import SchemaRegistry

            return SchemaRegistry(settings)

        return cls(topics, registry, spark)

    @property
    def topics(self) -> Collection[str]:
        """The topics that have Avro values."""
        return self._topics.keys()

    @property
    def refused(self) -> Mapping[TopicPartition, Collection[int]]:
        """The offsets of the records for which Spark has raised an error."""
        return self._refused

    def view(self, view: str) -> str:
        """Return the SQL of the records of a view with JSON values. It is the view itself if no topic has Avro values."""
        if not self._topics:
            return view
        decoders = self._decoders.values()
        chosen = (f"WHEN {each.record}.{READ} THEN CAST({each.json_sql} AS BINARY)" for each in decoders)
        names = ", ".join(literal(topic) for topic in self._topics)
        value = (
            f"CASE WHEN value IS NULL OR topic NOT IN ({names}) THEN value {' '.join(chosen)} "
            f"ELSE CAST('{_NOT_AVRO}' AS BINARY) END"
        )
        left_out = ", ".join(["value", *(each.record for each in decoders)])
        inner = ", ".join(["*", *(f"{each.record_sql} AS {each.record}" for each in decoders)])
        records = self._without_refused(view)
        return f"(SELECT * EXCEPT ({left_out}), {value} AS value FROM (SELECT {inner} FROM {records}))"

    def refuse(self, places: Mapping[TopicPartition, Iterable[int]]) -> None:
        """Decode no value of the records at these offsets again: Spark has raised an error for them."""
        for place, offsets in places.items():
            self._refused.setdefault(place, set()).update(offsets)

    def frame(self, records: DataFrame) -> DataFrame:
        """Return records with JSON values."""
        name = f"avro_{next(_numbers)}"
        records.createOrReplaceTempView(name)
        try:
            return self._spark.sql(f"SELECT * FROM {self.view(name)}")
        finally:
            self._spark.catalog.dropTempView(name)

    def _without_refused(self, view: str) -> str:
        """Return the SQL of the records of a view in which the refused ones have no bytes, which are no value of Avro."""
        if not self._refused:
            return view
        refused = " OR ".join(
            f"topic = {literal(place.topic)} AND partition = {place.partition} AND offset IN ({', '.join(map(str, offsets))})"
            for place, offsets in self._refused.items()
        )
        return f"(SELECT * EXCEPT (value), CASE WHEN {refused} THEN X'' ELSE value END AS value FROM {view})"

    def learn(self, records: DataFrame) -> bool:
        """Ask the registry for the schemas that records name and that are not known, and return whether one was found.

        At most `_MOST_AT_ONCE` are asked for, those of most records first, because broken records can name any number of
        them. Blocks for a Spark job. Raises `OutcomeUnknown` if the registry does not answer.
        """
        if self._registry is None:
            return False
        now_s = time.monotonic()
        self._unreadable = {named: at for named, at in self._unreadable.items() if now_s - at < _ASK_AGAIN_S}
        names = ", ".join(literal(topic) for topic in self._topics)
        found = (
            records.where(f"topic IN ({names}) AND length(value) >= {_PREFIX_BYTES} AND substring(value, 1, 1) = X'00'")
            .selectExpr("topic", f"CAST(conv(hex(substring(value, 2, {_PREFIX_BYTES - 1})), 16, 10) AS BIGINT) AS id")
            .groupBy("topic", "id")
            .count()
            .orderBy("count", "topic", "id", ascending=[False, True, True])
            .limit(_MOST_AT_ONCE + len(self._decoders) + len(self._unreadable))
            .collect()
        )
        named = ((row.topic, row.id) for row in found)
        new = [each for each in named if each not in self._decoders and each not in self._unreadable][:_MOST_AT_ONCE]
        refused = {each: fault for each in new if (fault := self._fault_of(self._registry, *each)) is not None}
        if refused:
            (topic, schema_id), fault = next(iter(refused.items()))
            log.warning(
                "records with %d unknown schemas cannot be read, and become dead letters; one of them is the id %d in %s: %s",
                len(refused), schema_id, topic, fault[:_TOLD_CHARACTERS],
            )  # fmt: skip
        return len(refused) < len(new)

    def _fault_of(self, registry: SchemaRegistry, topic: str, schema_id: int) -> str | None:
        """Ask for one schema and keep it. Returns why it cannot be read."""
        try:
            decoder = _decoder(topic, schema_id, registry.avro(schema_id), self._topics[topic], len(self._decoders))
            # Analysed only, so that a schema that Spark cannot read is not part of a statement.
            self._spark.sql(
                f"SELECT {decoder.json_sql} FROM (SELECT {decoder.struct_sql} AS {decoder.record} FROM {_NO_RECORD})"
            )
        except (ValueError, RecursionError, *SPARK_ERRORS) as error:
            self._unreadable[topic, schema_id] = time.monotonic()
            return str(error)
        log.info("read schema %d of topic %s from the registry", schema_id, topic)
        self._decoders[topic, schema_id] = decoder
        return None


def _columns_of(schema: AvroSchema) -> tuple[Column, ...]:
    """Return the columns of a sink, which has a time in the form of a text. Their other types do not matter here."""
    return tuple(Column(field["name"], "STRING") for field in schema["fields"])


def _decoder(topic: str, schema_id: int, schema: AvroSchema, columns: Sequence[Column], number: int) -> _Decoder:
    """Raises `ValueError` for a schema that is none of a record."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise ValueError("it is not the schema of a record")
    try:
        read = reading_schema(schema, columns)
    except MALFORMED as error:
        raise ValueError(f"it is no schema of Avro ({type(error).__name__}: {error})") from error
    options = f"map('mode', 'PERMISSIVE', 'avroSchema', {literal(json.dumps(read))})"
    struct = f"from_avro(substring(value, {_PREFIX_BYTES + 1}), {literal(json.dumps(schema))}, {options})"
    is_of = f"topic = {literal(topic)} AND hex(substring(value, 1, {_PREFIX_BYTES})) = '{schema_id:010X}'"
    record = f"__avro_{number}"
    return _Decoder(record, struct, f"CASE WHEN {is_of} THEN {struct} END", _json_sql(record, schema, columns))


def _json_sql(record: str, schema: AvroSchema, columns: Sequence[Column]) -> str:
    """Return the SQL of the JSON of the columns that a record has."""
    known = {field["name"] for field in schema["fields"]}
    fields = [f"{literal(c.name)}, {record}.{quoted(c.name)}" for c in columns if c.name in known]
    # A record without any of the columns has no other JSON.
    return f"to_json(named_struct({', '.join(fields)}), {_JSON_OPTIONS})" if fields else "'{}'"
