"""Avro schemas: that of a sink's columns, and that of another program as one text without references."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Column

if TYPE_CHECKING:
    from sqlglot import exp

AvroSchema = Any
"""A schema as Python objects: the name of a type, a list of alternatives, or a mapping."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
RECORDS = ("record", "error")
"""The kinds of types with fields."""
NAMED = (*RECORDS, "enum", "fixed")
"""The kinds of types that have a name."""
MALFORMED = (LookupError, AttributeError, TypeError, RecursionError)
"""The errors of reading an invalid schema: parts are missing, of a wrong type or too deep. Some registries accept any."""
_PLAIN = {
    "BOOLEAN": "boolean",
    "TINYINT": "int",
    "SMALLINT": "int",
    "INT": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "TEXT": "string",
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMPTZ": {"type": "long", "logicalType": "timestamp-millis"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-millis"},
}


def schema_of_sink(topic: str, columns: Sequence[Column], node: str) -> AvroSchema:
    """Return the schema of the records that a sink writes: every field may be null, and is by default.

    The record's name is that of the topic, with an underscore for each character that Avro does not accept. Raises
    `InvalidTopology` for a column whose name or type Avro does not have.
    """
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    name = name if _NAME.fullmatch(name) else f"_{name}"
    return {"type": "record", "name": name, "fields": _fields(name, [(c.name, _parsed(c.type)) for c in columns], node)}


def _parsed(kind: str) -> exp.DataType:
    from sqlglot import exp

    return exp.DataType.build(kind, dialect="spark")


def _fields(path: str, fields: Sequence[tuple[str, exp.DataType]], node: str) -> list[AvroSchema]:
    """Return the fields of the record with the full name `path`, which is the namespace of the records in them."""
    for field, _ in fields:
        if not _NAME.fullmatch(field):
            raise InvalidTopology(
                f"{node}: column '{field}' cannot be the name of a field in Avro, which has letters, digits and underscores, "
                "with no digit in front; rename it with select()"
            )
    return [{"name": name, "type": ["null", _type(path, name, kind, node)], "default": None} for name, kind in fields]


def _type(path: str, name: str, kind: exp.DataType, node: str) -> AvroSchema:
    what = kind.this.value if hasattr(kind.this, "value") else str(kind.this)
    if what in _PLAIN:
        return _PLAIN[what]
    if what == "DECIMAL":
        given = [int(part.name) for part in kind.expressions]
        precision, scale = (*given, *(10, 0)[len(given) :])
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if what == "STRUCT":
        fields = _fields(f"{path}.{name}", [(field.name, field.kind) for field in kind.expressions], node)
        return {"type": "record", "name": name, "namespace": path, "fields": fields}
    if what in ("ARRAY", "LIST"):
        return {"type": "array", "items": ["null", _type(path, name, kind.expressions[0], node)]}
    if what == "MAP" and kind.expressions[0].this.value == "TEXT":
        return {"type": "map", "values": ["null", _type(path, name, kind.expressions[1], node)]}
    raise InvalidTopology(
        f"{node}: a column of type {kind.sql('spark')} cannot be written as Avro; cast it, for example to STRING"
    )


def inlined(schema: AvroSchema, named: Mapping[str, AvroSchema] | None = None) -> AvroSchema:
    """Return a schema in which each named type that others define is defined where it is first used.

    `named` are the types of other schemas by full name. Raises `ValueError` for a schema that is none, and one of `MALFORMED`
    for one with parts that are missing, of another type or nested too deeply.
    """
    return _Inlining(dict(named or {})).of(schema, "")


def named_types(schema: AvroSchema) -> dict[str, AvroSchema]:
    """Return the named types that a schema defines at any depth, by full name."""
    found: dict[str, AvroSchema] = {}
    _collect(schema, "", found)
    return found


def full_name(schema: Mapping[str, Any], space: str) -> str:
    """Return the full name of a named type inside the namespace `space`."""
    name = str(schema["name"])
    if "." in name:
        return name
    # An empty namespace is none; without the key, the namespace is that of the type around it.
    space = str(schema.get("namespace", space))
    return f"{space}.{name}" if space else name


def _collect(schema: AvroSchema, space: str, found: dict[str, AvroSchema]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _collect(each, space, found)
    elif isinstance(schema, Mapping):
        kind = schema.get("type")
        if kind in NAMED:
            name = full_name(schema, space)
            found.setdefault(name, schema)
            space = name.rpartition(".")[0]
            for field in schema.get("fields", ()):
                _collect(field.get("type"), space, found)
        elif kind == "array":
            _collect(schema.get("items"), space, found)
        elif kind == "map":
            _collect(schema.get("values"), space, found)
        else:
            _collect(kind, space, found)


class _Inlining:
    def __init__(self, named: dict[str, AvroSchema]) -> None:
        self._named = named
        self._defined: set[str] = set()

    def of(self, schema: AvroSchema, space: str) -> AvroSchema:
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVE else self._of_name(schema, space)
        if isinstance(schema, list):
            return [self.of(each, space) for each in schema]
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ValueError(f"{schema!r} is no type of Avro")
        kind = schema["type"]
        if kind in NAMED:
            return self._defining(schema, space, space)
        if kind == "array":
            return {**schema, "items": self.of(schema["items"], space)}
        if kind == "map":
            return {**schema, "values": self.of(schema["values"], space)}
        if isinstance(kind, str) and kind in _PRIMITIVE:
            return schema
        return self.of(kind, space)

    def _of_name(self, name: str, space: str) -> AvroSchema:
        full = name if "." in name or not space else f"{space}.{name}"
        for known in (full, name):
            if known in self._defined:
                return known
            if known in self._named:
                return self._defining(self._named[known], known.rpartition(".")[0], space)
        raise ValueError(f"it names the type '{name}', which neither it nor its references define")

    def _defining(self, schema: Mapping[str, Any], space: str, around: str) -> AvroSchema:
        """Return the definition of a type with the default namespace `space`, for a place in the namespace `around`."""
        full = full_name(schema, space)
        if full in self._defined:
            return full
        self._defined.add(full)
        space, _, name = full.rpartition(".")
        made = {**schema, "name": name, "namespace": space}
        if not space and not around:
            del made["namespace"]
        if schema["type"] in RECORDS:
            made["fields"] = [
                {**field, "name": str(field["name"]), "type": self.of(field["type"], space)}
                for field in schema["fields"]
            ]
        return made
