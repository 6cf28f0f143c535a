"""Outputs as Avro records, from the JSON that sinks give: one record after the other, by fastavro."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro

from tidemark.kafka.schema_registry import SchemaRegistry
from tidemark.settings import Settings
from tidemark.tasks.sink_records import ValueWriter
from tidemark.topology.plan import TopologyPlan

_MAGIC = b"\x00"
_ID_BYTES = 4

Converter = Callable[[Any], Any]
"""Takes a value of JSON other than null, and returns the one that fastavro takes for it."""


class AvroWriter:
    """Writes the values of one sink, each behind the id of its schema, as Confluent's `KafkaAvroSerializer` does."""

    def __init__(self, schema: str, schema_id: int) -> None:
        """`schema` is a sink's `value_schema`, and `schema_id` its id in the registry."""
        given = json.loads(schema)
        self._schema = fastavro.parse_schema(given)
        self._convert = _of_record(given)
        self._prefix = _MAGIC + schema_id.to_bytes(_ID_BYTES, "big")

    def encode(self, value: bytes) -> bytes:
        """Return the bytes of a value, which is given as JSON. Raises `ValueError` for one that does not fit the schema."""
        out = io.BytesIO()
        out.write(self._prefix)
        try:
            record = self._convert(json.loads(value, parse_float=Decimal))
            fastavro.schemaless_writer(out, self._schema, record)
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise ValueError(f"it does not fit the schema: {error}") from error
        return out.getvalue()


def registered_writers(plan: TopologyPlan, settings: Settings) -> Mapping[str, ValueWriter]:
    """Register the schemas of a plan's sinks of Avro, and return their writers by the sinks' nodes.

    Blocks. Raises `InvalidSettings` if no registry is named, `PreflightFailed` if it refuses a schema, and `OutcomeUnknown` if
    it does not answer.
    """
    registry = SchemaRegistry(settings)
    return {
        sink.node: AvroWriter(
            sink.value_schema, registry.register(f"{sink.topic}-value", json.loads(sink.value_schema))
        ).encode
        for subtopology in plan.subtopologies
        for sink in subtopology.sinks
        if sink.value_schema is not None
    }


def _decimal(whole_digits: int, value: Any) -> Decimal:
    found = value if isinstance(value, Decimal) else Decimal(value)
    if found and found.adjusted() >= whole_digits:
        raise ValueError(f"{found} has more than {whole_digits} digits in front of its point")
    return found


def _of_record(schema: Mapping[str, Any]) -> Converter:
    fields = [(field["name"], _converter(field["type"][1])) for field in schema["fields"]]
    changing = [(name, convert) for name, convert in fields if convert is not None]

    def convert_record(record: dict[str, Any]) -> dict[str, Any]:
        for name, convert in changing:
            value = record.get(name)
            if value is not None:
                record[name] = convert(value)
        return record

    return convert_record


def _converter(kind: Any) -> Converter | None:
    """Return what converts a type's values, or None for a type whose values are the same in JSON."""
    if isinstance(kind, str):
        return _OF_TYPE.get(kind)
    if kind.get("logicalType") == "decimal":
        return partial(_decimal, kind["precision"] - kind["scale"])
    if logical := _OF_LOGICAL_TYPE.get(kind.get("logicalType", "")):
        return logical
    if kind["type"] == "record":
        return _of_record(kind)
    is_map = kind["type"] == "map"
    part = _converter(kind["values" if is_map else "items"][1])
    if part is None:
        return None
    if is_map:
        return lambda found: {key: None if value is None else part(value) for key, value in found.items()}
    return lambda found: [None if value is None else part(value) for value in found]


_OF_TYPE: Mapping[str, Converter] = {
    "double": float,
    "float": float,
    "bytes": partial(base64.b64decode, validate=True),
}
_OF_LOGICAL_TYPE: Mapping[str, Converter] = {
    "date": date.fromisoformat,
    "timestamp-millis": datetime.fromisoformat,
}
