"""A fast road for JSON in its usual shape; `docs/decisions/0005-fast-road-for-canonical-json.md` says why it is exact.

A regular expression matches an object that has exactly the schema's fields, in the schema's order, with plain values:
strings of printable ASCII without escapes, integers that surely fit, no nulls. What it matches, every JSON parser reads
the same way. All else goes through `from_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidemark.topology.plan import Column

SEPARATOR = "\\u0001"
_SPACE = " ?"
# Printable ASCII without quote and backslash: Java matches such a class by a bit set. Nothing ever backtracks (`+` behind a
# quantifier), as no value can hold what follows it.
_VALUES = {
    "STRING": r'"([\x20\x21\x23-\x5b\x5d-\x7e]*+)"',
    "BIGINT": r"(0|-?[1-9][0-9]{0,17}+)",
    "INT": r"(0|-?[1-9][0-9]{0,8}+)",
    "BOOLEAN": r"(true|false)",
}


def pattern(schema: Sequence[Column]) -> str | None:
    """The expression, a group per column; None where a column has a type without a plain form."""
    if any(column.type not in _VALUES for column in schema):
        return None
    fields = [f'"{re.escape(column.name)}":{_SPACE}{_VALUES[column.type]}' for column in schema]
    return r"\A\{" + f",{_SPACE}".join(fields) + r"\}\z"


def needed(schema: Sequence[Column], expressions: Iterable[str]) -> tuple[int, ...]:
    """Numbers of the columns that the expressions may name; too many does no harm."""
    texts = [expression.casefold() for expression in expressions]
    return tuple(i for i, column in enumerate(schema) if any(column.name.casefold() in text for text in texts))


def replacement(columns: Sequence[int]) -> str:
    """What a match becomes: each needed group behind a separator, which no plain value contains."""
    return "".join(f"{SEPARATOR}${i + 1}" for i in columns) or SEPARATOR


def field_sql(position: int, count: int, text: str) -> str:
    """The value at `position` (from 0) of `count` in a replaced record."""
    until = text if position == count - 1 else f"substring_index({text}, '{SEPARATOR}', {position + 2})"
    return f"substring_index({until}, '{SEPARATOR}', -1)"
