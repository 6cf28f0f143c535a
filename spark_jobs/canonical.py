"""A fast path for JSON in its usual form. `docs/decisions/0005-fast-road-for-canonical-json.md` says why it is exact.

A regular expression matches an object that has exactly the schema's fields, in the schema's order, with plain values: strings
of printable ASCII without escapes, integers that certainly fit, no nulls. Every JSON parser reads such an object in the same
way. Everything else is parsed with `from_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidemark.topology.plan import Column

SEPARATOR = "\\u0001"
_SPACE = " ?"
# Printable ASCII without quote and backslash: Java matches such a class with a bit set. There is no backtracking (`+` after a
# quantifier), because no value can contain what follows it.
_VALUES = {
    "STRING": r'"([\x20\x21\x23-\x5b\x5d-\x7e]*+)"',
    "BIGINT": r"(0|-?[1-9][0-9]{0,17}+)",
    "INT": r"(0|-?[1-9][0-9]{0,8}+)",
    "BOOLEAN": r"(true|false)",
}


def pattern(schema: Sequence[Column]) -> str | None:
    """Return the regular expression with a group per column, or None if a column's type has no plain form."""
    if any(column.type not in _VALUES for column in schema):
        return None
    fields = [f'"{re.escape(column.name)}":{_SPACE}{_VALUES[column.type]}' for column in schema]
    return r"\A\{" + f",{_SPACE}".join(fields) + r"\}\z"


def needed(schema: Sequence[Column], expressions: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of the columns that the expressions may use. Too many do no harm."""
    texts = [expression.casefold() for expression in expressions]
    return tuple(i for i, column in enumerate(schema) if any(column.name.casefold() in text for text in texts))


def replacement(columns: Sequence[int]) -> str:
    """Return the replacement of a match: each needed group after a separator, which no plain value contains."""
    return "".join(f"{SEPARATOR}${i + 1}" for i in columns) or SEPARATOR


def field_sql(position: int, count: int, text: str) -> str:
    """Return the SQL of the value at `position` (from 0) of `count` values in a replaced record."""
    until = text if position == count - 1 else f"substring_index({text}, '{SEPARATOR}', {position + 2})"
    return f"substring_index({until}, '{SEPARATOR}', -1)"
