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
# Printable ASCII without quote and backslash. Each character is listed by itself, because Java then looks it up in a table;
# for ranges it tries one range after the other, which takes more than twice as long. There is no backtracking (an atomic
# group, and `+` after a quantifier), because no value can contain what follows it.
_CHARACTERS = "".join(re.escape(chr(code)) for code in range(0x20, 0x7F) if chr(code) not in '"\\')
_TEXT = f"(?>[{_CHARACTERS}]*)"
_VALUES = {
    "STRING": _TEXT,
    "BIGINT": r"0|-?[1-9][0-9]{0,17}+",
    "INT": r"0|-?[1-9][0-9]{0,8}+",
    "BOOLEAN": r"true|false",
}


def is_possible(schema: Sequence[Column]) -> bool:
    """Return whether all columns have types with a plain form."""
    return all(column.type in _VALUES for column in schema)


def pattern(schema: Sequence[Column], columns: Sequence[int]) -> str:
    """Return the regular expression, with a group for each of the needed columns. All types must have a plain form.

    If only one column is needed and it is a string, its group includes the quotes, so that no match is empty.
    """
    return rf"\A\{{{_fields(schema, columns, _SPACE, is_quoted=len(columns) == 1)}\}}\z"


def _fields(schema: Sequence[Column], columns: Sequence[int], space: str, *, is_quoted: bool = False) -> str:
    """Return the regular expression of what is between the braces, with `space` between fields, names and values."""
    fields = (
        f'"{re.escape(column.name)}":{space}{_value(column.type, is_group=i in columns, is_quoted=is_quoted)}'
        for i, column in enumerate(schema)
    )
    return f",{space}".join(fields)


def _value(kind: str, *, is_group: bool, is_quoted: bool) -> str:
    value = f"({_VALUES[kind]})" if is_group else f"(?:{_VALUES[kind]})"
    if kind != "STRING":
        return value
    return f'("{_TEXT}")' if is_group and is_quoted else f'"{value}"'


def needed(schema: Sequence[Column], expressions: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of the columns that the expressions may use. Too many do no harm."""
    texts = [expression.casefold() for expression in expressions]
    return tuple(i for i, column in enumerate(schema) if any(column.name.casefold() in text for text in texts))


def extracted_sql(schema: Sequence[Column], columns: Sequence[int], value: str, *, is_marked: bool = False) -> str:
    """Return the SQL of the needed columns of a record as one text.

    If the record is not in the usual form, the text is one that `is_extracted_sql` recognises. Several columns are put behind
    separators, which no plain value contains. A single column is extracted by itself, which is cheapest, unless the text
    `is_marked`: then it also says whether the record has spaces between its fields, for `as_rendered_sql`.
    """
    if is_marked:
        compact, spaced = (_fields(schema, columns, space) for space in ("", _SPACE))
        matched = rf"\A(?:(\{{){compact}\}}|\{{{spaced}\}})\z"
        # Only one of the two alternatives has matched. The groups of the other one are empty.
        groups = "".join(f"{SEPARATOR}${n + 2}${n + 2 + len(columns)}" for n in range(len(columns))) + f"{SEPARATOR}$1"
    elif len(columns) > 1:
        matched = pattern(schema, columns)
        groups = "".join(f"{SEPARATOR}${n + 1}" for n in range(len(columns)))
    else:
        return f"regexp_extract({value}, {literal(pattern(schema, columns))}, {len(columns)})"
    replaced = f"regexp_replace({value}, {literal(matched)}, '{groups}')"
    return f"CASE WHEN startswith({value}, '{{') THEN {replaced} ELSE '' END"


def is_extracted_sql(columns: Sequence[int], text: str, *, is_marked: bool = False) -> str:
    """Return the SQL of whether `extracted_sql` has found the usual form."""
    return f"startswith({text}, '{SEPARATOR}')" if is_marked or len(columns) > 1 else f"{text} <> ''"


def field_sql(
    schema: Sequence[Column], columns: Sequence[int], column: int, text: str, *, is_marked: bool = False
) -> str:
    """Return the SQL of one of the needed columns, by its number, in the text of `extracted_sql`."""
    if len(columns) == 1 and not is_marked:
        return f"substring({text}, 2, length({text}) - 2)" if schema[column].type == "STRING" else text
    position = columns.index(column)
    is_last = position == len(columns) - 1 and not is_marked
    until = text if is_last else f"substring_index({text}, '{SEPARATOR}', {position + 2})"
    return f"substring_index({until}, '{SEPARATOR}', -1)"


def as_rendered_sql(schema: Sequence[Column], text: str, value: str) -> str:
    """Return the SQL of what `to_json` gives for a record in the usual form: its value without the spaces between its fields.

    `text` is its marked text, which says whether there are any.
    """
    spaced = rf"\A\{{{_fields(schema, range(len(schema)), _SPACE, is_quoted=True)}\}}\z"
    compact = "{" + ",".join(f'"{column.name}":${n + 1}' for n, column in enumerate(schema)) + "}"
    rewritten = f"regexp_replace({value}, {literal(spaced)}, {literal(compact)})"
    return f"CASE WHEN endswith({text}, '{SEPARATOR}{{') THEN {value} ELSE {rewritten} END"


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
