"""The schema by which Spark reads a record of Avro: the types of the writer's schema in the form that the columns declare."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemark.topology.avro_schema import NAMED, RECORDS, AvroSchema, full_name, named_types
from tidemark.topology.plan import Column

if TYPE_CHECKING:
    from sqlglot import exp

READ = "__tidemark_read"
"""A field with a default: null only in the result of a record that Spark could not decode."""

_MOST_DIGITS = 38
"""The largest precision of a decimal of Spark."""
_NUMBERS = ({"int", "long"}, {"float", "double"})
"""The unions that Spark reads as one number. It reads others as a struct, with a field for each type but `null`."""

Declared = Mapping[str, "exp.DataType"]
"""The declared types of fields by their names."""


def reading_schema(schema: AvroSchema, columns: Sequence[Column]) -> AvroSchema:
    """Return the schema by which a record is read: with `READ`, and without fields that no column declares.

    `schema` is the writer's; `inlined` has made it. A time that is read as a number stays the number that it is in Avro. The
    fields of both schemas have the same names, so no alias is needed, and one could name another field. Raises `ValueError` for
    a schema that cannot be read by these columns.
    """
    from sqlglot import exp

    types = {column.name: exp.DataType.build(column.type, dialect="spark") for column in columns}
    record = _Reading(named_types(schema)).record(full_name(schema, ""), types)
    return {**record, "fields": [*record["fields"], {"name": READ, "type": "boolean", "default": True}]}


class _Reading:
    """Makes the types of one reading schema from the writer's named types, by full name.

    A record is defined once for all uses that declare it in the same way. Each of its definitions after the first has a
    namespace of its own: Avro also finds a record by its name without the namespace. What is no record has one definition for
    all uses, because Avro finds it by its full name only.
    """

    def __init__(self, types: Mapping[str, AvroSchema]) -> None:
        self._types = types
        self._defined: set[str] = set()
        self._uses: dict[tuple[str, str], str] = {}
        """The names of the records' definitions, by those in the writer's schema and the declared type: none if read whole."""
        self._numbers = itertools.count()

    def record(self, name: str, declared: Declared) -> AvroSchema:
        """Return the definition of a record with its declared fields."""
        return self._definition(self._own_name(name), name, declared)

    def _of(self, kind: AvroSchema, declared: exp.DataType | None) -> AvroSchema:
        """Return a type as it is read for a declared one, or as it is if none is declared."""
        if isinstance(kind, list):
            return self._of_union(kind, declared)
        if (name := self._name_of(kind)) is not None:
            return self._named(name, declared)
        if isinstance(kind, str):
            return kind
        if kind["type"] == "long" and _is(declared, "bigint"):
            return "long"
        if declared is not None and _is_nanos(kind) and declared.this in declared.TEMPORAL_TYPES:
            raise ValueError(
                f"Spark reads {kind['logicalType']} as a number of nanoseconds: declare BIGINT instead of {_sql(declared)}"
            )
        part = declared.expressions[-1] if declared is not None and _is(declared, "array", "map") else None
        if _is_nothing(declared):
            part = declared
        return {**_narrowed(kind), **{key: self._of(kind[key], part) for key in ("items", "values") if key in kind}}

    def _of_union(self, kinds: Sequence[AvroSchema], declared: exp.DataType | None) -> AvroSchema:
        """Return a union with all its types. In those without a field in the declared STRUCT, records have no fields."""
        from sqlglot import exp

        present = [kind for kind in kinds if _kind(kind) != "null"]
        types = [declared] * len(present)
        if len(present) > 1 and {_kind(kind) for kind in present} not in _NUMBERS:
            members = _fields_of(declared)
            other = exp.DataType.build("STRUCT") if _is(declared, "struct") else None
            types = [members.get(f"member{number}", other) for number in range(len(present))]
        left = iter(types)
        read = [kind if _kind(kind) == "null" else self._of(kind, next(left)) for kind in kinds]
        self._require_distinct(kinds, read)
        return read

    def _named(self, name: str, declared: exp.DataType | None) -> AvroSchema:
        schema = self._types[name]
        if schema["type"] not in RECORDS:
            is_uuid = schema.get("logicalType") == "uuid"
            if is_uuid and declared is not None and not _is_nothing(declared) and not _is(declared, "binary"):
                raise ValueError(
                    f"{name} is a uuid of bytes, which is no text: declare BINARY instead of {_sql(declared)}"
                )
            if name in self._defined:
                return name
            return _narrowed(_named_as(self._own_name(name), schema))
        fields = _fields_of(declared) if _is(declared, "struct") else None
        use = name, "" if declared is None or fields is None else _sql(declared)
        if use not in self._uses:
            self._uses[use] = self._own_name(name)
            return self._definition(self._uses[use], name, fields)
        return self._uses[use]

    def _definition(self, own: str, name: str, declared: Declared | None) -> AvroSchema:
        """Return the definition of a record with its declared fields, or with all if `declared` is None."""
        types = declared or {}
        read = [
            {**_plain(field), "type": self._of(field["type"], types.get(field["name"]))}
            for field in self._types[name]["fields"]
            if declared is None or field["name"] in types
        ]
        return {**_named_as(own, self._types[name]), "fields": read}

    def _own_name(self, name: str) -> str:
        """Return the full name of a further definition of a type."""
        if name in self._defined:
            return f"__tidemark_{next(self._numbers)}.{_short(name)}"
        self._defined.add(name)
        return name

    def _name_of(self, kind: AvroSchema) -> str | None:
        """Return the full name of a named type."""
        if isinstance(kind, Mapping):
            return full_name(kind, "") if kind["type"] in NAMED else None
        return kind if isinstance(kind, str) and kind in self._types else None

    def _require_distinct(self, kinds: Sequence[AvroSchema], read: Sequence[AvroSchema]) -> None:
        """Raise `ValueError` for a union of records that differ in their namespaces only, if one has another namespace now."""
        names = {
            name: each if isinstance(each, str) else full_name(each, "")
            for kind, each in zip(kinds, read, strict=True)
            if (name := self._name_of(kind)) is not None and self._types[name]["type"] in RECORDS
        }
        if len({_short(name) for name in names}) < len(names) and any(name != own for name, own in names.items()):
            raise ValueError(
                f"a union has the types {', '.join(names)}, and one of them is also read elsewhere: they cannot be told apart; "
                "declare it in the same way in both places, or leave the column of one place out"
            )


def _named_as(full: str, schema: Mapping[str, AvroSchema]) -> dict[str, AvroSchema]:
    return {**_plain(schema), "name": _short(full), "namespace": full.rpartition(".")[0]}


def _narrowed(schema: Mapping[str, AvroSchema]) -> dict[str, AvroSchema]:
    """Return a type in which a decimal has at most the digits of Spark's. Its values in Avro do not depend on their number."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if isinstance(precision, int) and isinstance(scale, int) and scale <= _MOST_DIGITS < precision:
        return {**_plain(schema), "precision": _MOST_DIGITS}
    return _plain(schema)


def _short(full: str) -> str:
    return full.rpartition(".")[2]


def _kind(schema: AvroSchema) -> str:
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def _sql(declared: exp.DataType) -> str:
    return declared.sql("spark")


def _is_nanos(kind: Mapping[str, AvroSchema]) -> bool:
    return kind["type"] == "long" and kind.get("logicalType") in ("timestamp-nanos", "local-timestamp-nanos")


def _is(declared: exp.DataType | None, *kinds: str) -> bool:
    return declared is not None and declared.is_type(*kinds)


def _is_nothing(declared: exp.DataType | None) -> bool:
    """Return whether this is the declared type of what is not read: a STRUCT without fields."""
    return declared is not None and _is(declared, "struct") and not declared.expressions


def _fields_of(declared: exp.DataType | None) -> Declared:
    """Return the declared types of the fields of a STRUCT. Other types have no fields."""
    return (
        {part.name: part.kind for part in declared.expressions}
        if declared is not None and _is(declared, "struct")
        else {}
    )


def _plain(schema: Mapping[str, AvroSchema]) -> dict[str, AvroSchema]:
    return {key: value for key, value in schema.items() if key != "aliases"}
