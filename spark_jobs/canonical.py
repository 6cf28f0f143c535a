"""A fast path for JSON in its usual form. `docs/decisions/0005-fast-path-for-canonical-json.md` says why it is exact.

A regular expression matches an object that has exactly the schema's fields, in the schema's order, with plain values: strings
of printable ASCII without escapes, integers that certainly fit, no nulls. Every JSON parser reads such an object in the same
way. Everything else is parsed with `from_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spark_jobs.sql_text import literal
from tidemark.topology.plan import Column

SEPARATOR = "\\u0001"
QUOTE = '"'
_SPACE = " ?"
# Printable ASCII without quote and backslash: Java matches such a class with a bit set. There is no backtracking (`+` after a
# quantifier), because no value can contain what follows it.
_VALUES = {
    "STRING": r'"([\x20\x21\x23-\x5b\x5d-\x7e]*+)"',
    "BIGINT": r"(0|-?[1-9][0-9]{0,17}+)",
    "INT": r"(0|-?[1-9][0-9]{0,8}+)",
    "BOOLEAN": r"(true|false)",
}


def is_possible(schema: Sequence[Column]) -> bool:
    """Return whether all columns have types with a plain form."""
    return all(column.type in _VALUES for column in schema)


def pattern(schema: Sequence[Column], columns: Sequence[int]) -> str:
    """Return the regular expression, with a group for each of the needed columns. All types must have a plain form.

    If only one column is needed and it is a string, its group includes the quotes, so that no match is empty.
    """
    fields = [
        f'"{re.escape(column.name)}":{_SPACE}{_value(column.type, is_group=i in columns, is_quoted=len(columns) == 1)}'
        for i, column in enumerate(schema)
    ]
    return r"\A\{" + f",{_SPACE}".join(fields) + r"\}\z"


def _value(kind: str, *, is_group: bool, is_quoted: bool) -> str:
    text = _VALUES[kind]
    if not is_group:
        return text.replace("(", "(?:")
    return f"({text.replace('(', '(?:')})" if is_quoted and kind == "STRING" else text


def needed(schema: Sequence[Column], expressions: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of the columns that the expressions may use. Too many do no harm."""
    texts = [expression.casefold() for expression in expressions]
    return tuple(i for i, column in enumerate(schema) if any(column.name.casefold() in text for text in texts))


def extracted_sql(schema: Sequence[Column], columns: Sequence[int], value: str) -> str:
    """Return the SQL of the needed columns of a record as one text.

    If the record is not in the usual form, the text is one that `is_extracted_sql` recognises. A single column is extracted
    by itself, which is cheapest. Several are put behind separators, which no plain value contains.
    """
    if len(columns) > 1:
        groups = "".join(f"{SEPARATOR}${number + 1}" for number in range(len(columns)))
        replaced = f"regexp_replace({value}, {literal(pattern(schema, columns))}, '{groups}')"
        return f"CASE WHEN startswith({value}, '{{') THEN {replaced} ELSE '' END"
    return f"regexp_extract({value}, {literal(pattern(schema, columns))}, {len(columns)})"


def is_extracted_sql(columns: Sequence[int], text: str) -> str:
    """Return the SQL of whether `extracted_sql` has found the usual form."""
    return f"startswith({text}, '{SEPARATOR}')" if len(columns) > 1 else f"{text} <> ''"


def field_sql(schema: Sequence[Column], columns: Sequence[int], column: int, text: str) -> str:
    """Return the SQL of one of the needed columns, by its number, in the text of `extracted_sql`."""
    if len(columns) == 1:
        return f"substring({text}, 2, length({text}) - 2)" if schema[column].type == "STRING" else text
    position = columns.index(column)
    until = text if position == len(columns) - 1 else f"substring_index({text}, '{SEPARATOR}', {position + 2})"
    return f"substring_index({until}, '{SEPARATOR}', -1)"


def first_field_is_sql(schema: Sequence[Column], text: str, value: str) -> str:
    """Return the SQL of whether the first column, a string, of a record in the usual form is equal to `text`, an expression.

    A text that contains a quote could be equal to more than the column, so it counts as different.
    """
    starts = " OR ".join(
        f"startswith({value}, concat({literal(f'{{{name}:{space}{QUOTE}')}, {text}, '{QUOTE}'))"
        for name in [f"{QUOTE}{schema[0].name}{QUOTE}"]
        for space in ("", " ")
    )
    return f"NOT contains({text}, '{QUOTE}') AND ({starts})"
