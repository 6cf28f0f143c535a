"""Constant texts of which Spark makes a time by its clock, so that a batch that is computed again has another result.

Where Spark casts a constant text to a date or a timestamp, 'now', 'today', 'tomorrow' and 'yesterday', the last three also
with a zone, become the time at which the statement is optimised. That is so for texts that are computed from constants, too. A
time of day without a date, such as '12:30', is completed with today's date.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from tidemark.topology.sql.types import UNKNOWN, function_name, spark_type

if TYPE_CHECKING:
    from sqlglot import exp

_CLOCK_WORD = re.compile(r"[\x00-\x20]*(?:now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE)
_TIME_OF_DAY = re.compile(r"T[0-9]|[\x00-\x20\x7f]*[0-9]{1,2}:")
_TIMES = ("DATE", "TIMESTAMP")


class _Use(Enum):
    """As what a text is used. It is uncertain where a type or a function is not known."""

    TEXT = "text"
    TIME = "time"
    UNCERTAIN = "uncertain"


_OF_ARGUMENTS = {
    name: use
    for use, names in {
        _Use.TEXT: (
            "upper lower initcap trim replace translate substring_index substring left right pad reverse repeat concat "
            "concat_ws regexp_extract regexp_replace regexp_like regexp_split str_position starts_with ends_with contains "
            "length md5 sha sha2"
        ),
        _Use.TIME: (
            "year month day day_of_month day_of_year day_of_week week_of_year weekday quarter hour minute second extract "
            "date_part unix_date unix_millis unix_micros unix_seconds last_day next_day months_between date_trunc "
            "timestamp_trunc date_add date_sub ts_or_ds_add ts_or_ds_to_date time_str_to_time convert_timezone add_months "
            "to_date to_timestamp to_timestamp_ltz to_timestamp_ntz try_to_date try_to_timestamp"
        ),
    }.items()
    for name in names.split()
}
"""As what functions use their arguments, by the names that sqlglot or Spark gives them."""


def clock_text(tree: exp.Expr) -> str | None:
    """Return the SQL of a constant of which Spark could make a time by its clock; None if the expression has none.

    The parts of the tree must have their types. A word such as 'now' is only accepted where it certainly remains a text.
    """
    for node in tree.walk():
        is_word = _is_text(node, _CLOCK_WORD)
        if is_word or _is_text(node, _TIME_OF_DAY) or _is_computed_text(node):
            use = _use_of(node, tree)
            if use is _Use.TIME or (is_word and use is _Use.UNCERTAIN):
                return node.sql("spark")
    return None


def _is_text(node: exp.Expr, pattern: re.Pattern[str]) -> bool:
    """Return whether this is a text in quotes that begins with the pattern."""
    from sqlglot import exp

    return isinstance(node, exp.Literal) and node.is_string and pattern.match(node.name) is not None


def _is_computed_text(node: exp.Expr) -> bool:
    """Return whether this computes a text from constants."""
    from sqlglot import exp

    # Columns and the parameters of lambdas have names.
    is_written = isinstance(node, exp.Literal | exp.Paren)
    return not is_written and spark_type(node) == "STRING" and node.find(exp.Identifier) is None


def _use_of(node: exp.Expr, root: exp.Expr) -> _Use:
    """Return as what the expression around a text uses it. What the whole expression gives remains a text."""
    from sqlglot import exp

    if node is root or (parent := node.parent) is None:
        return _Use.TEXT
    # A list of patterns is a tuple inside of ANY or ALL.
    if isinstance(parent, exp.Paren | exp.Tuple | exp.Any | exp.All):
        return _use_of(parent, root)
    if isinstance(parent, exp.Cast):
        return _Use.TIME if spark_type(parent).startswith(_TIMES) else _Use.TEXT
    if (use := _OF_ARGUMENTS.get(function_name(parent))) is not None:
        return use
    if isinstance(parent, exp.DPipe | exp.Like | exp.ILike):
        return _Use.TEXT
    beside = [spark_type(one) for one in _of_one_type(node, parent)]
    if any(one.startswith(_TIMES) for one in beside):
        return _Use.TIME
    return _Use.TEXT if beside and UNKNOWN not in beside else _Use.UNCERTAIN


def _of_one_type(node: exp.Expr, parent: exp.Expr) -> list[exp.Expr]:
    """Return the parts to whose type Spark casts a text: what it is compared with, and what may be given instead of it."""
    from sqlglot import exp

    if isinstance(parent, exp.If) and isinstance(case := parent.parent, exp.Case):
        if node.arg_key == "this":
            return [case.this] if case.this else []
        chosen = [branch.args["true"] for branch in case.args["ifs"]]
        return [*chosen, *([case.args["default"]] if case.args.get("default") else [])]
    if isinstance(parent, exp.Case):
        is_default = node.arg_key == "default"
        return [node, *(branch.args["true" if is_default else "this"] for branch in parent.args["ifs"])]
    if isinstance(parent, exp.If | exp.Nvl2):
        return [parent.args[name] for name in ("true", "false") if name != node.arg_key and parent.args.get(name)]
    if isinstance(parent, exp.Predicate | exp.Coalesce | exp.Greatest | exp.Least | exp.Nullif | exp.Add | exp.Sub):
        return [one for one in parent.iter_expressions() if one is not node]
    return []
