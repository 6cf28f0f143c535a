"""The forms in which values are written to topics. Everything in Tidemark works with the JSON of a value."""

from __future__ import annotations

from enum import Enum

from tidemark.errors import InvalidTopology


class ValueSerde(Enum):
    """The form of the values of a topic."""

    JSON = "json"
    """A JSON object."""
    AVRO = "avro"
    """An Avro record behind a zero byte and its schema's id in four bytes, as Confluent's `KafkaAvroSerializer` writes it."""


def checked_value_serde(value_serde: str, node: str) -> ValueSerde:
    """Parse the name of a form of values. Raises `InvalidTopology` for any other."""
    known = {member.value: member for member in ValueSerde}
    if not isinstance(value_serde, str) or value_serde not in known:
        raise InvalidTopology(
            f"{node}: value_serde={value_serde!r} is unknown; use one of {', '.join(map(repr, known))}"
        )
    return known[value_serde]
