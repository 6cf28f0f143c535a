"""Reading JSON values as columns, without the numbers with which Spark computes for minutes, and without numbers as dates.

For a DECIMAL column Spark writes out every digit of a number such as `1e300000000` before it sees that there are too many. A
value that has a number with an exponent of four or more digits, where it could become a DECIMAL, is not parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_jobs.sql_text import literal, quoted
from tidemark.topology.plan import Column

if TYPE_CHECKING:
    from sqlglot import exp

_CORRUPT = "__corrupt"
# Without the last option Spark reads a text of digits in a DATE column as days since 1970.
_PERMISSIVE = (
    f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}', 'enableDateTimeParsingFallback', 'false')"
)
# A text may hide the exponent behind an escape or between commas, which Spark removes from a text that it reads as a DECIMAL.
# Java's BigDecimal reads the digits of every script.
_MAY_BE_HUGE = r"[eE],*[+-]?,*(?:\p{Nd},*){4}|\\u"
_HUGE_NUMBER = r"[0-9][eE][+-]?0*+[0-9]{4}"
_HUGE_TEXT = r"[eE][+-]?0*+\p{Nd}{4}"
_ESCAPE = r"\\."
_TEXT = "\"[^\"]*\"|'[^']*'"


def parsed_json_sql(value: str, columns: Sequence[Column]) -> str:
    """Return the SQL of the struct of the columns and `__corrupt STRING` that a JSON text contains.

    `value` is a cheap expression, because it can occur several times. The struct is null, or `__corrupt` is not, if the text
    cannot be parsed.
    """
    parsed = _from_json(value, [f"{quoted(c.name)} {c.type}" for c in columns])
    # A first look at the text, because parsing a type takes longer than the rest.
    decimal = _with_decimal(columns) if any("DECIMAL" in c.type.upper() for c in columns) else {}
    if not decimal:
        return parsed
    return f"CASE WHEN NOT coalesce({_is_huge_sql(value, decimal)}, false) THEN {parsed} END"


def _from_json(value: str, fields: Sequence[str]) -> str:
    schema = literal(", ".join([*fields, f"`{_CORRUPT}` STRING"]))
    return f"from_json({value}, {schema}, {_PERMISSIVE})"


def _with_decimal(columns: Sequence[Column]) -> dict[str, exp.DataType]:
    """Return the types of the columns that have a DECIMAL at any depth."""
    from sqlglot import exp

    types = {c.name: exp.DataType.build(c.type, dialect="spark") for c in columns}
    return {name: kind for name, kind in types.items() if _has_decimal(kind)}


def _is_huge_sql(value: str, decimal: Mapping[str, exp.DataType]) -> str:
    """Return the SQL of whether a number of many digits could become a DECIMAL.

    Numbers in other columns are refused too, as texts only if they are in a DECIMAL column: there Spark reads them as numbers.
    """
    outside = f"regexp_replace(regexp_replace({value}, {literal(_ESCAPE)}, ''), {literal(_TEXT)}, '')"
    has_huge_text = _has_huge_field(value, decimal, 0)
    return f"{value} RLIKE {literal(_MAY_BE_HUGE)} AND ({outside} RLIKE {literal(_HUGE_NUMBER)} OR {has_huge_text})"


def _has_decimal(kind: exp.DataType) -> bool:
    from sqlglot import exp

    return any(node.is_type(exp.DataType.Type.DECIMAL) for node in kind.find_all(exp.DataType))


def _has_huge_field(text: str, decimal: Mapping[str, exp.DataType], depth: int) -> str:
    """Return the SQL of whether an object has, in one of these fields, a text that is a number of many digits.

    The object is read as a map, which has a repeated field each time: Spark converts every one, though only the last counts.
    """
    field = f"__e{depth}"
    huge = [
        f"({field}.key = {literal(name)} AND {_is_huge(f'{field}.value', kind, depth + 1)})"
        for name, kind in decimal.items()
    ]
    return _any_in(f"map_entries(from_json({text}, 'MAP<STRING, STRING>'))", field, " OR ".join(huge))


def _is_huge(text: str, kind: exp.DataType, depth: int) -> str:
    """Return the SQL, never null, of whether the JSON of a value has, for a DECIMAL, a text that is a number of many digits."""
    from sqlglot import exp

    if kind.is_type(exp.DataType.Type.DECIMAL):
        return f"coalesce(replace({text}, ',', '') RLIKE {literal(_HUGE_TEXT)}, false)"
    if kind.is_type(exp.DataType.Type.STRUCT):
        fields = {field.name: field.kind for field in kind.expressions if _has_decimal(field.kind)}
        return f"({text} IS NOT NULL AND {_has_huge_field(text, fields, depth)})"
    is_map = kind.is_type(exp.DataType.Type.MAP)
    parts = f"map_values(from_json({text}, 'MAP<STRING, STRING>'))" if is_map else f"from_json({text}, 'ARRAY<STRING>')"
    part = f"__e{depth}"
    return f"({text} IS NOT NULL AND {_any_in(parts, part, _is_huge(part, kind.expressions[-1], depth + 1))})"


def _any_in(parts: str, part: str, is_huge: str) -> str:
    """Return the SQL of whether one of the parts is huge; also true if the parts cannot be read."""
    return f"coalesce(exists({parts}, {part} -> {is_huge}), true)"
