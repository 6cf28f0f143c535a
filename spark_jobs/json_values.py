"""Reading JSON values as columns, without the numbers with which Spark computes for minutes.

For a DECIMAL column Spark writes out every digit of a number such as `1e300000000` before it sees that there are too many. A
value that has a number with an exponent of four or more digits, where it could become a DECIMAL, is not parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_jobs.sql_text import literal, quoted
from tidemark.topology.plan import Column

if TYPE_CHECKING:
    from sqlglot import exp

_CORRUPT = "__corrupt"
_PERMISSIVE = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
# A text may hide the exponent behind an escape, and Java's BigDecimal reads the digits of every script.
_MAY_BE_HUGE = r"[eE][+-]?\p{Nd}{4}|\\u"
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
    return {name: kind for name, kind in types.items() if any(map(_is_decimal, kind.find_all(exp.DataType)))}


def _is_huge_sql(value: str, decimal: Mapping[str, exp.DataType]) -> str:
    """Return the SQL of whether a number of many digits could become a DECIMAL.

    Numbers in other columns are refused too, as texts only if they are in a DECIMAL column: there Spark reads them as numbers.
    """
    texts = [f"{quoted(name)} {kind.transform(_with_text).sql('spark')}" for name, kind in decimal.items()]
    outside = f"regexp_replace(regexp_replace({value}, {literal(_ESCAPE)}, ''), {literal(_TEXT)}, '')"
    huge = " OR ".join(
        ["__t IS NULL", f"__t.{_CORRUPT} IS NOT NULL"]
        + [f"coalesce({one}, false)" for name, kind in decimal.items() for one in _huge(f"__t.{quoted(name)}", kind, 0)]
    )
    has_huge_text = f"exists(array({_from_json(value, texts)}), __t -> {huge})"
    return f"{value} RLIKE {literal(_MAY_BE_HUGE)} AND ({outside} RLIKE {literal(_HUGE_NUMBER)} OR {has_huge_text})"


def _is_decimal(node: exp.Expr) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.DataType) and node.is_type(exp.DataType.Type.DECIMAL)


def _with_text(node: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    return exp.DataType.build("STRING", dialect="spark") if _is_decimal(node) else node


def _huge(place: str, kind: exp.DataType, depth: int) -> Iterator[str]:
    """Yield the SQL of whether a part of a value, in which DECIMAL is text, has a text that is a number of many digits."""
    from sqlglot import exp

    if _is_decimal(kind):
        yield f"{place} RLIKE {literal(_HUGE_TEXT)}"
    elif kind.is_type(exp.DataType.Type.STRUCT):
        for field in kind.expressions:
            yield from _huge(f"{place}.{quoted(field.name)}", field.kind, depth)
    elif kind.is_type(exp.DataType.Type.ARRAY, exp.DataType.Type.MAP):
        is_map = kind.is_type(exp.DataType.Type.MAP)
        each = f"__e{depth}"
        for one in _huge(each, kind.expressions[-1], depth + 1):
            yield f"exists({f'map_values({place})' if is_map else place}, {each} -> coalesce({one}, false))"
