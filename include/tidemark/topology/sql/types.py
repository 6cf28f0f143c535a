"""The types that Spark gives to expressions, where they are certain without Spark.

sqlglot's own types are those of many databases: for it `year(at)` is TINYINT, and a STRING plus an INT is INT. A wrong type
would be forced on every value, so only the kinds of expressions below have a type here. A test compares each with Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp

UNKNOWN = "UNKNOWN"
NULL = "NULL"
_FRACTION = "fraction"
"""A number written with a point, and what integers give together with it: for Spark a DECIMAL, for Tidemark a DOUBLE."""
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NUMBERS = (*_INTEGERS, "FLOAT", "DOUBLE")
_PLAIN = (*_NUMBERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")

FIXED_TYPES = {
    name: kind
    for kind, names in {
        "STRING": (
            "upper lower initcap trim regexp_extract regexp_replace replace translate substring_index hex md5 sha sha2 "
            "to_base64 json_format json_extract_scalar time_to_str unix_to_str format_number format concat_ws array_to_string "
            "soundex typeof space elt"
        ),
        "INT": (
            "length ascii str_position year month day day_of_month day_of_year day_of_week week_of_year weekday quarter "
            "hour minute second array_size cardinality unix_date levenshtein hash octet_length bit_length"
        ),
        "BIGINT": "bigint str_to_unix unix_millis unix_micros unix_seconds xxhash64 crc32 factorial",
        "DOUBLE": (
            "sqrt cbrt exp ln log log1p expm1 power sign sin cos tan asin acos atan atan2 radians "
            "degrees months_between rint pi e hypot"
        ),
        "SMALLINT": "smallint",
        "TINYINT": "tinyint",
        "BOOLEAN": "is_nan isnull isnotnull starts_with ends_with contains array_contains regexp_like exists",
        "DATE": "ts_or_ds_to_date make_date last_day date_trunc next_day",
        "TIMESTAMP": "str_to_time timestamp_trunc timestamp_millis timestamp_seconds timestamp_micros",
        "ARRAY<STRING>": "regexp_split",
        "BINARY": "from_base64 unhex encode",
    }.items()
    for name in names.split()
}
"""The types of functions that have the same type for all arguments, by the names that sqlglot or Spark gives them."""

_FIELDS = frozenset(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFWEEK", "DOW", "DOY", "HOUR", "MINUTE"])


def spark_type(node: exp.Expr) -> str:
    """Return the type of an expression whose columns have their types, `NULL`, or `UNKNOWN` if it is not certain.

    A number written with a point, such as 0.5, counts as DOUBLE.
    """
    found = _type_of(node)
    return "DOUBLE" if found == _FRACTION else found


def function_name(node: exp.Expr) -> str:
    """Return a function's name in lower case with underscores, or "" if the node is not a function."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return str(node.name).casefold()
    if isinstance(node, exp.Func):
        return node.sql_name().casefold()
    return ""


def _type_of(node: exp.Expr) -> str:
    from sqlglot import exp

    if isinstance(node, exp.Column | exp.Dot | exp.Bracket):
        return _of_place(node)
    if isinstance(node, exp.Literal):
        return _of_literal(node)
    if isinstance(node, exp.Null):
        return NULL
    if isinstance(node, exp.Paren):
        return _type_of(node.this)
    if isinstance(node, exp.Cast):
        text: str = node.to.sql("spark")
        return "STRING" if text.startswith(("VARCHAR", "CHAR")) else text
    if isinstance(node, exp.AtTimeZone | exp.FromTimeZone):
        return "TIMESTAMP"
    if isinstance(node, exp.Boolean | exp.Predicate | exp.And | exp.Or | exp.Not):
        return "BOOLEAN"
    return (
        _of_operator(node)
        if isinstance(node, exp.Binary | exp.Unary) and not isinstance(node, exp.Func)
        else _of_function(node)
    )


def _of_place(node: exp.Expr) -> str:
    """Return the type of a column, or of a part of one, which is that of the schema."""
    from sqlglot import exp

    root = node
    while isinstance(root, exp.Dot | exp.Bracket):
        root = root.this
    if not isinstance(root, exp.Column):
        is_of_texts = isinstance(node, exp.Bracket) and _type_of(node.this) == "ARRAY<STRING>"
        return "STRING" if is_of_texts else UNKNOWN
    return node.type.sql("spark") if node.type is not None else UNKNOWN


def _of_literal(node: exp.Literal) -> str:
    if node.is_string:
        return "STRING"
    if not node.this.isdigit():
        return "DOUBLE" if "e" in node.this.casefold() else _FRACTION
    number = int(node.this)
    return "INT" if number < 1 << 31 else "BIGINT" if number < 1 << 63 else UNKNOWN


def _of_operator(node: exp.Binary | exp.Unary) -> str:
    from sqlglot import exp

    if isinstance(node, exp.Unary):
        found = _type_of(node.this)
        return found if found in _INTEGERS or (isinstance(node, exp.Neg) and _is_number(found)) else UNKNOWN
    left, right = _type_of(node.left), _type_of(node.right)
    if isinstance(node, exp.DPipe):
        return _joined([left, right])
    if isinstance(node, exp.BitwiseLeftShift | exp.BitwiseRightShift):
        return ("BIGINT" if left == "BIGINT" else "INT") if left in _INTEGERS and right in _INTEGERS[:3] else UNKNOWN
    if isinstance(node, exp.BitwiseAnd | exp.BitwiseOr | exp.BitwiseXor):
        return _common([left, right]) if left in _INTEGERS and right in _INTEGERS else UNKNOWN
    if not (_is_number(left) and _is_number(right)):
        return UNKNOWN
    if isinstance(node, exp.IntDiv):
        return "BIGINT" if left in _INTEGERS and right in _INTEGERS else UNKNOWN
    if isinstance(node, exp.Div):
        return "DOUBLE"
    return _common([left, right]) if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod) else UNKNOWN


def _of_function(node: exp.Expr) -> str:
    from sqlglot import exp

    if isinstance(node, exp.Case):
        default = node.args.get("default")
        chosen = [branch.args["true"] for branch in node.args["ifs"]]
        return _common([_type_of(each) for each in (*chosen, *([] if default is None else [default]))])
    if isinstance(node, exp.If | exp.Nvl2):
        default = node.args.get("false")
        return _common([_type_of(each) for each in (node.args["true"], *([] if default is None else [default]))])
    if isinstance(node, exp.Coalesce | exp.Greatest | exp.Least):
        return _common([_type_of(each) for each in (node.this, *node.expressions)])
    if isinstance(node, exp.Concat) and not isinstance(node, exp.ConcatWs):
        return _joined([_type_of(each) for each in node.expressions])
    if isinstance(node, exp.Array):
        found = _common([_type_of(each) for each in node.expressions])
        return f"ARRAY<{found}>" if found in _PLAIN else UNKNOWN
    if isinstance(node, exp.Nullif | exp.Abs | exp.Round):
        found = _type_of(node.this)
        is_possible = found in _PLAIN if isinstance(node, exp.Nullif) else _is_number(found)
        return found if is_possible else UNKNOWN
    if isinstance(node, exp.Ceil | exp.Floor):
        return "BIGINT" if node.args.get("decimals") is None and _type_of(node.this) in _NUMBERS else UNKNOWN
    if isinstance(node, exp.Substring | exp.Left | exp.Right | exp.Pad | exp.Reverse | exp.Repeat):
        return "STRING" if _type_of(node.this) == "STRING" else UNKNOWN
    if isinstance(node, exp.Extract):
        return "INT" if node.this.name.upper() in _FIELDS else UNKNOWN
    if isinstance(node, exp.DateDiff):
        return "INT" if node.args.get("unit") is None else UNKNOWN
    return FIXED_TYPES.get(function_name(node), UNKNOWN)


def _is_number(kind: str) -> bool:
    return kind in _NUMBERS or kind == _FRACTION


def _joined(kinds: Sequence[str]) -> str:
    """Return the type of joined texts. Joined bytes are bytes, and joined arrays are arrays."""
    return "STRING" if all(kind in (*_PLAIN, _FRACTION, NULL) for kind in kinds) else UNKNOWN


def _common(kinds: Sequence[str]) -> str:
    """Return the type in which Spark computes with values of these types."""
    known = list(dict.fromkeys(kind for kind in kinds if kind != NULL))
    if len(known) <= 1:
        return known[0] if known else NULL
    if not all(map(_is_number, known)):
        return UNKNOWN
    if _FRACTION in known:
        return "DOUBLE" if "FLOAT" in known or "DOUBLE" in known else _FRACTION
    return max(known, key=_NUMBERS.index)
