"""Schemas of streams in Spark's DDL, `"patient_id STRING, beat_ms BIGINT"`, and the columns that every record has."""

from __future__ import annotations

import re

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Column
from tidemark.topology.sql.expressions import quoted, syntax_error

# Kafka's own data of a record, usable in every expression on a source. `_key` is the key's bytes as UTF-8.
KEY = Column("_key", "STRING")
TIMESTAMP = Column("_timestamp", "BIGINT")
RESERVED = (KEY, Column("_topic", "STRING"), Column("_partition", "INT"), Column("_offset", "BIGINT"), TIMESTAMP)

ROW_TYPE_NAMES = frozenset(["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING"])
"""Types that a column may have in the task loop, after Spark; `tasks.rows.ROW_TYPES` maps them to Arrow's."""

_TYPES = frozenset(
    {
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "STRING",
        "BINARY",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "ARRAY",
        "MAP",
        "STRUCT",
    }
)
_DECIMAL = re.compile(r"DECIMAL\((\d+)(?:, (\d+))?\)")
_SYNONYMS = {"LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}
_SYNONYM = re.compile(r"(?<=[\s<:,])(LONG|SHORT|BYTE)(?=\s*(?:[,>)]|$))", re.IGNORECASE)


def parse_schema(text: str, where: str) -> tuple[Column, ...]:
    """Parse a schema; the types are in capitals as Spark prints them.

    Raises `InvalidTopology` naming the column: invalid syntax, unknown type, repeated or reserved name, a constraint.
    """
    columns = tuple(_column(definition, text, where) for definition in _definitions(text, where))
    seen: set[str] = set()
    for column in columns:
        name = column.name.casefold()
        if name in seen:
            raise InvalidTopology(f"{where}: column '{column.name}' occurs twice (case does not matter); rename one")
        if name in {reserved.name for reserved in RESERVED} or name.startswith("__"):
            raise InvalidTopology(
                f"{where}: column name '{column.name}' is reserved for what Tidemark adds to a record; "
                f"use the reserved column, or read the field under another name"
            )
        seen.add(name)
    return columns


def _definitions(text: str, where: str) -> list[object]:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    example = "write e.g. 'id STRING, at BIGINT'"
    if not isinstance(text, str) or not text.strip():
        raise InvalidTopology(f"{where}: there are no columns; {example}")
    ddl = _SYNONYM.sub(lambda found: _SYNONYMS[found[1].upper()].ljust(len(found[1])), text)
    try:
        trees = sqlglot.parse(f"CREATE TABLE t (\n{ddl}\n)", dialect="spark")
    except ParseError as error:
        place = syntax_error(error.errors, lines_before=1)
        raise InvalidTopology(f"{where}: {quoted(text)} does not parse{place}; {example}") from None
    except SqlglotError:
        raise InvalidTopology(f"{where}: {quoted(text)} does not parse; {example}") from None
    tree = trees[0] if len(trees) == 1 else None
    plain = isinstance(tree, exp.Create) and not tree.expression and isinstance(tree.this, exp.Schema)
    if tree is None or not plain or not tree.this.expressions:
        raise InvalidTopology(f"{where}: {quoted(text)} is not a list of columns; {example}")
    return list(tree.this.expressions)


def _column(definition: object, text: str, where: str) -> Column:
    from sqlglot import exp

    if not isinstance(definition, exp.ColumnDef) or definition.kind is None:
        name = getattr(definition, "name", "")
        raise InvalidTopology(f"{where}: column '{name}' in {quoted(text)} has no type; write e.g. '{name} STRING'")
    name = definition.name
    if definition.constraints:
        constraint = definition.constraints[0].sql("spark")
        raise InvalidTopology(f"{where}: column '{name}' has '{constraint}', which JSON cannot express; remove it")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidTopology(
            f"{where}: column name '{name}' may contain only letters, digits and underscores; rename it"
        )
    for kind in definition.kind.find_all(exp.DataType):
        written = kind.sql("spark").upper()
        if (base := re.split(r"[(<]", written)[0]) not in _TYPES:
            raise InvalidTopology(f"{where}: column '{name}' has type {base}; use one of {', '.join(sorted(_TYPES))}")
        if base == "MAP" and not written.startswith("MAP<STRING,"):
            raise InvalidTopology(
                f"{where}: column '{name}' has {written}; JSON has only text as keys, so use MAP<STRING, ...>"
            )
        if (decimal := _DECIMAL.match(written)) and not int(decimal[2] or 0) <= int(decimal[1]) <= 38:
            raise InvalidTopology(
                f"{where}: column '{name}' has {written}; a DECIMAL has at most 38 digits, and no more of them after the point"
            )
    return Column(name, _capitals(definition.kind.sql("spark")))


def _capitals(kind: str) -> str:
    """Convert a type to capitals, except that the names of a struct's fields stay as written."""
    return kind if "STRUCT" in kind.upper() else kind.upper()
