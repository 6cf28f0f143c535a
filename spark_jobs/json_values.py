"""Reading JSON values as columns, except for values of which Spark makes something that they do not say.

- For a DECIMAL column Spark writes out every digit of a number such as `1e300000000` before it sees that there are too many. A
  value that has a number with an exponent of four or more digits, where it could become a DECIMAL, is not parsed.
- For a TIMESTAMP column Spark completes a text that is only a time of day, such as `12:30`, with today's date by the clock. A
  value that has one where it would become a TIMESTAMP is not parsed.
- For a TIMESTAMP column Spark counts the microseconds of a number of seconds in 64 bits, and wraps around what is too large. A
  value that has such a number for a TIMESTAMP is not parsed.
- For a TINYINT column Spark reads 128 to 255 as -128 to -1. A value that has such a number for a TINYINT is not parsed.
- For a DATE column Spark reads a text of digits as days since 1970, if an option does not prevent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.sql_text import literal, quoted
from tidemark.topology.plan import Column

if TYPE_CHECKING:
    from sqlglot import exp

_CORRUPT = "__corrupt"
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
# Spark ignores blanks around a time, but not before a T.
_MAY_BE_TIME_OF_DAY = r"""["'](?:T[0-9]|(?:[\x20\x7f]|\\[bfnrt])*[0-9]{1,2}:)|\\u"""
_TIME_OF_DAY = r"\A(?:T[0-9]|[\x00-\x20\x7f]*[0-9]{1,2}:)"
# All numbers of three digits that do not fit, and do not make Spark refuse the value.
_TOO_LARGE_BYTE = r"(?:12[89]|1[3-9][0-9]|2[0-4][0-9]|25[0-5])"
_MAY_BE_WRAPPED = rf"[:,\[]\s*{_TOO_LARGE_BYTE}(?![0-9])"
_WRAPPED_NUMBER = rf"\A{_TOO_LARGE_BYTE}\z"

_MOST_SECONDS = (2**63 - 1) // 1_000_000
_MAY_BE_TOO_MANY_SECONDS = r"[:,\[]\s*-?(?:9[2-9][0-9]{11}|[0-9]{14})"
_MANY_SECONDS = r"\A-?[0-9]{13,}\z"


def parsed_json_sql(value: str, columns: Sequence[Column]) -> str:
    """Return the SQL of the struct of the columns and `__corrupt STRING` that a JSON text contains.

    `value` is a cheap expression, because it can occur several times. The struct is null, or `__corrupt` is not, if the text
    cannot be parsed.
    """
    schema = literal(", ".join([*(f"{quoted(c.name)} {c.type}" for c in columns), f"`{_CORRUPT}` STRING"]))
    parsed = f"from_json({value}, {schema}, {_PERMISSIVE})"
    refused = [
        f"({value} RLIKE {literal(kind.may_be)} AND ({kind.anywhere(value)} OR {kind.is_in_object(value, fields, 0)}))"
        for kind in (_HUGE, _COMPLETED, _TOO_MANY_SECONDS, _WRAPPED)
        if (fields := kind.fields_of(columns))
    ]
    return f"CASE WHEN NOT coalesce({' OR '.join(refused)}, false) THEN {parsed} END" if refused else parsed


@dataclass(frozen=True)
class _Refused:
    """Texts and numbers in JSON that Spark must not read as values of one type.

    `condition` returns the SQL of whether a text, or the text of a number, is that. `may_be` is a pattern that every JSON text
    with one matches. `anywhere` returns the SQL of another reason not to read a JSON text that matches it.
    """

    type: str
    may_be: str
    condition: Callable[[str], str]
    anywhere: Callable[[str], str] = lambda _: "false"

    def fields_of(self, columns: Sequence[Column]) -> dict[str, exp.DataType]:
        """Return the types of the columns that have the type at any depth."""
        from sqlglot import exp

        # A first look at the text, because parsing a type takes longer than the rest.
        types = {c.name: exp.DataType.build(c.type, dialect="spark") for c in columns if self.type in c.type.upper()}
        return {name: kind for name, kind in types.items() if self._is_part_of(kind)}

    def is_in_object(self, text: str, fields: Mapping[str, exp.DataType], depth: int) -> str:
        """Return the SQL of whether an object has, in one of these fields, a text that must not be read.

        The object is read as a map, which has a repeated field each time: Spark converts every one, though only the last
        counts.
        """
        field = f"__e{depth}"
        found = [
            f"({field}.key = {literal(name)} AND {self._is_in_value(f'{field}.value', kind, depth + 1)})"
            for name, kind in fields.items()
        ]
        return _any_in(f"map_entries(from_json({text}, 'MAP<STRING, STRING>'))", field, " OR ".join(found))

    def _is_in_value(self, text: str, kind: exp.DataType, depth: int) -> str:
        """Return the SQL, never null, of whether the JSON of a value has, for the type, a text that must not be read."""
        from sqlglot import exp

        if self._is(kind):
            return f"coalesce({self.condition(text)}, false)"
        if kind.is_type(exp.DataType.Type.STRUCT):
            fields = {field.name: field.kind for field in kind.expressions if self._is_part_of(field.kind)}
            return f"({text} IS NOT NULL AND {self.is_in_object(text, fields, depth)})"
        is_map = kind.is_type(exp.DataType.Type.MAP)
        parts = (
            f"map_values(from_json({text}, 'MAP<STRING, STRING>'))" if is_map else f"from_json({text}, 'ARRAY<STRING>')"
        )
        part = f"__e{depth}"
        return (
            f"({text} IS NOT NULL AND {_any_in(parts, part, self._is_in_value(part, kind.expressions[-1], depth + 1))})"
        )

    def _is_part_of(self, kind: exp.DataType) -> bool:
        from sqlglot import exp

        return any(self._is(node) for node in kind.find_all(exp.DataType))

    def _is(self, kind: exp.DataType) -> bool:
        return kind.sql("spark").partition("(")[0] == self.type


def _has_huge_number(value: str) -> str:
    """Return the SQL of whether a JSON text has a number of many digits, in whatever column, except in a text.

    Texts are refused only in a DECIMAL column: there Spark reads them as numbers.
    """
    outside = f"regexp_replace(regexp_replace({value}, {literal(_ESCAPE)}, ''), {literal(_TEXT)}, '')"
    return f"{outside} RLIKE {literal(_HUGE_NUMBER)}"


_HUGE = _Refused(
    "DECIMAL", _MAY_BE_HUGE, lambda text: f"replace({text}, ',', '') RLIKE {literal(_HUGE_TEXT)}", _has_huge_number
)
_COMPLETED = _Refused("TIMESTAMP", _MAY_BE_TIME_OF_DAY, lambda text: f"{text} RLIKE {literal(_TIME_OF_DAY)}")
_TOO_MANY_SECONDS = _Refused(
    "TIMESTAMP",
    _MAY_BE_TOO_MANY_SECONDS,
    lambda text: f"({text} RLIKE {literal(_MANY_SECONDS)} AND abs(CAST({text} AS DOUBLE)) > {_MOST_SECONDS})",
)
_WRAPPED = _Refused("TINYINT", _MAY_BE_WRAPPED, lambda text: f"{text} RLIKE {literal(_WRAPPED_NUMBER)}")


def _any_in(parts: str, part: str, is_refused: str) -> str:
    """Return the SQL of whether one of the parts must not be read; also true if the parts cannot be read."""
    return f"coalesce(exists({parts}, {part} -> {is_refused}), true)"
