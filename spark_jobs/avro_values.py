"""Avro values of Kafka records as JSON, in Spark's generated code (`docs/decisions/0038-avro-is-read-as-json.md`).

Statements read JSON. For sources of Avro they read a view in which each value is the JSON of its record, with the fields that
the source's schema names. Spark's own reader decodes a record with the schema whose id is in front of it.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.refused_records import SPARK_ERRORS
from spark_jobs.sql_text import literal, quoted
from tidemark.settings import Settings
from tidemark.topology.avro_schema import AvroSchema
from tidemark.topology.plan import Column, Sink, Source
from tidemark.topology.value_serde import ValueSerde

if TYPE_CHECKING:
    from tidemark.kafka.schema_registry import SchemaRegistry

log = logging.getLogger(__name__)

_PREFIX_BYTES = 5
"""A zero byte, and the id of the schema in four bytes, the most significant one first."""
_READ = "__tidemark_read"
"""A field with a default: null only in the result of a record that Spark could not decode."""
_NOT_AVRO = "not Avro with a known schema"
"""The value of a record that cannot be decoded. It is no JSON, so the record is unparsable."""
_ASK_AGAIN_S = 60.0
_TOLD_CHARACTERS = 500
_LOCAL_TIME = r"yyyy-MM-dd\'T\'HH:mm:ss.SSSSSS"
_JSON_OPTIONS = f"map('timestampFormat', '{_LOCAL_TIME}XXX', 'timestampNTZFormat', '{_LOCAL_TIME}')"
_numbers = itertools.count()
_NAMED = ("record", "error", "enum", "fixed")


_Named = tuple[str, int]
"""A topic, and the id of a schema that a record of it names."""


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
        self._schemas: dict[_Named, AvroSchema] = {}
        self._unreadable: dict[_Named, float] = {}
        """What the registry or Spark could not read, and when."""

    @classmethod
    def of(
        cls, sources: Iterable[Source], settings: Settings, spark: SparkSession, *, sinks: Iterable[Sink] = ()
    ) -> AvroValues:
        """Return the values of some sources and sinks.

        Raises `InvalidSettings` if one of them has Avro, and the settings name no registry.
        """
        topics = {source.topic: source.schema for source in sources if source.value_serde is ValueSerde.AVRO}
        written = {sink.topic: sink.value_schema for sink in sinks if sink.value_schema is not None}
        topics |= {topic: _columns_of(json.loads(schema)) for topic, schema in written.items()}

        def registry() -> SchemaRegistry:
            # Its client takes 0.4 s to import.
            from tidemark.kafka.schema_registry import SchemaRegistry

            return SchemaRegistry(settings)

        return cls(topics, registry, spark)

    @property
    def topics(self) -> Collection[str]:
        """The topics that have Avro values."""
        return self._topics.keys()

    def view(self, view: str) -> str:
        """Return the SQL of the records of a view with JSON values. It is the view itself if no topic has Avro values."""
        if not self._topics:
            return view
        prefix = f"hex(substring(value, 1, {_PREFIX_BYTES}))"
        body = f"substring(value, {_PREFIX_BYTES + 1})"
        decoded: list[str] = []
        chosen: list[str] = []
        for number, ((topic, schema_id), schema) in enumerate(self._schemas.items()):
            record, columns = f"__avro_{number}", self._topics[topic]
            is_of = f"topic = {literal(topic)} AND {prefix} = '{schema_id:010X}'"
            decoded.append(f"CASE WHEN {is_of} THEN {_decoded_sql(body, schema, columns)} END AS {record}")
            chosen.append(f"WHEN {record}.{_READ} THEN CAST({_json_sql(record, schema, columns)} AS BINARY)")
        names = ", ".join(literal(topic) for topic in self._topics)
        value = (
            f"CASE WHEN value IS NULL OR topic NOT IN ({names}) THEN value {' '.join(chosen)} "
            f"ELSE CAST('{_NOT_AVRO}' AS BINARY) END"
        )
        left_out = ", ".join(["value", *(part.rpartition(" ")[2] for part in decoded)])
        inner = ", ".join(["*", *decoded])
        return f"(SELECT * EXCEPT ({left_out}), {value} AS value FROM (SELECT {inner} FROM {view}))"

    def frame(self, records: DataFrame) -> DataFrame:
        """Return records with JSON values."""
        name = f"avro_{next(_numbers)}"
        records.createOrReplaceTempView(name)
        try:
            return self._spark.sql(f"SELECT * FROM {self.view(name)}")
        finally:
            self._spark.catalog.dropTempView(name)

    def learn(self, records: DataFrame) -> bool:
        """Ask the registry for the schemas that records name and that are not known, and return whether one was found.

        Blocks for a Spark job. Raises `OutcomeUnknown` if the registry does not answer.
        """
        if self._registry is None:
            return False
        names = ", ".join(literal(topic) for topic in self._topics)
        found = (
            records.where(f"topic IN ({names}) AND length(value) > {_PREFIX_BYTES} AND substring(value, 1, 1) = X'00'")
            .selectExpr("topic", f"CAST(conv(hex(substring(value, 2, {_PREFIX_BYTES - 1})), 16, 10) AS BIGINT) AS id")
            .distinct()
            .collect()
        )
        now_s = time.monotonic()
        new = [
            named
            for named in sorted((row.topic, row.id) for row in found)
            if named not in self._schemas and now_s - self._unreadable.get(named, -math.inf) >= _ASK_AGAIN_S
        ]
        read = [self._is_read(self._registry, named) for named in new]
        return any(read)

    def _is_read(self, registry: SchemaRegistry, named: _Named) -> bool:
        topic, schema_id = named
        try:
            schema = registry.avro(schema_id)
            self._require_readable(schema, self._topics[topic])
        except (ValueError, *SPARK_ERRORS) as error:
            self._unreadable[named] = time.monotonic()
            log.warning(
                "records of %s with the schema id %d cannot be read, and become dead letters: %s",
                topic, schema_id, str(error)[:_TOLD_CHARACTERS],
            )  # fmt: skip
            return False
        log.info("read schema %d of topic %s from the registry", schema_id, topic)
        self._schemas[named] = schema
        self._unreadable.pop(named, None)
        return True

    def _require_readable(self, schema: AvroSchema, columns: Sequence[Column]) -> None:
        """Raise `ValueError` or Spark's error for a schema that a statement cannot decode."""
        if not isinstance(schema, Mapping) or schema.get("type") != "record":
            raise ValueError("it is not the schema of a record")
        record = _decoded_sql("X''", schema, columns)
        self._spark.sql(f"SELECT {_json_sql('r', schema, columns)} FROM (SELECT {record} AS r)")


def _columns_of(schema: AvroSchema) -> tuple[Column, ...]:
    """Return the columns of a sink, which has a time in the form of a text. Their other types do not matter here."""
    return tuple(Column(field["name"], "STRING") for field in schema["fields"])


def _decoded_sql(value: str, schema: AvroSchema, columns: Sequence[Column]) -> str:
    """Return the SQL of the struct of the fields that are read, and `_READ`. All are null if the value cannot be decoded."""
    options = f"map('mode', 'PERMISSIVE', 'avroSchema', {literal(json.dumps(_reduced(schema, columns)))})"
    return f"from_avro({value}, {literal(json.dumps(schema))}, {options})"


def _json_sql(record: str, schema: AvroSchema, columns: Sequence[Column]) -> str:
    """Return the SQL of the JSON of the columns that a record has."""
    known = {field["name"] for field in schema["fields"]}
    fields = [f"{literal(c.name)}, {record}.{quoted(c.name)}" for c in columns if c.name in known]
    # A record without any of the columns has no other JSON.
    return f"to_json(named_struct({', '.join(fields)}), {_JSON_OPTIONS})" if fields else "'{}'"


def _reduced(schema: AvroSchema, columns: Sequence[Column]) -> AvroSchema:
    """Return the schema by which a record is read: with `_READ`, and without fields that nobody needs.

    A field that defines a type stays, because others may name it. A time that is read as a number stays the number that it is
    in Avro.
    """
    types = {column.name: column.type for column in columns}
    fields = [
        {**field, "type": _number(field["type"]) if types.get(field["name"]) == "BIGINT" else field["type"]}
        for field in schema["fields"]
        if field["name"] in types or _defines_type(field["type"])
    ]
    return {**schema, "fields": [*fields, {"name": _READ, "type": "boolean", "default": True}]}


def _number(kind: AvroSchema) -> AvroSchema:
    if isinstance(kind, list):
        return [_number(each) for each in kind]
    return "long" if isinstance(kind, Mapping) and kind.get("type") == "long" else kind


def _defines_type(kind: AvroSchema) -> bool:
    if isinstance(kind, list):
        return any(_defines_type(each) for each in kind)
    if not isinstance(kind, Mapping):
        return False
    return kind.get("type") in _NAMED or any(_defines_type(kind.get(part)) for part in ("type", "items", "values"))
