"""Constant texts of which Spark makes a time by its clock, so that a batch that is computed again has another result.

Where Spark casts a constant text to a date or a timestamp, 'now', 'today', 'tomorrow' and 'yesterday', the last three also
with a zone, become the time at which the statement is optimised. That is so for texts that are computed from constants, too. A
time of day without a date, such as '12:30', is completed with today's date. A text is only refused where it is certain that
Spark casts it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemark.topology.sql.types import function_name, spark_type

if TYPE_CHECKING:
    from sqlglot import exp

# Spark reads offsets such as +2 directly after the word, and names of zones only after a blank.
_CLOCK_WORD = re.compile(
    r"[\x00-\x20]*(?i:now[\x00-\x20]*\Z|(?:today|tomorrow|yesterday)(?:[\x00-\x20]*\Z|[ \t]*[+-][0-9]|[ \t]+(?-i:[A-Z])))"
)
_TIME_OF_DAY = re.compile(r"T[0-9]|[\x00-\x20\x7f]*[0-9]{1,2}:")
_TIMES = ("DATE", "TIMESTAMP")
_OF_TIMES = frozenset(
    {
        "year",
        "month",
        "day",
        "day_of_month",
        "day_of_year",
        "day_of_week",
        "week_of_year",
        "weekday",
        "dayname",
        "monthname",
        "quarter",
        "hour",
        "minute",
        "second",
        "extract",
        "date_part",
        "datepart",
        "unix_date",
        "unix_millis",
        "unix_micros",
        "unix_seconds",
        "str_to_unix",
        "last_day",
        "next_day",
        "months_between",
        "date_trunc",
        "timestamp_trunc",
        "timestampdiff",
        "timestamp_add",
        "date_add",
        "date_sub",
        "ts_or_ds_add",
        "ts_or_ds_to_date",
        "time_str_to_time",
        "convert_timezone",
        "add_months",
        "to_timestamp_ltz",
        "to_timestamp_ntz",
        "try_to_date",
        "try_to_timestamp",
    }
)
"""Functions that make times of their arguments, by the names that sqlglot or Spark gives them."""
_GIVE_TIMES = frozenset(
    {
        "add_months",
        "convert_timezone",
        "date_add",
        "date_sub",
        "timestamp_add",
        "to_timestamp_ltz",
        "to_timestamp_ntz",
        "try_to_date",
        "try_to_timestamp",
        "ts_or_ds_add",
    }
)
"""Functions that always give a date or a timestamp, although sqlglot may not know their type."""


def clock_text(tree: exp.Expr) -> str | None:
    """Return the SQL of a constant of which Spark makes a time by its clock; None if the expression has none.

    The parts of the tree must have their types. A constant whose text is not known counts as such a text.
    """
    for node in tree.walk():
        if not _is_constant_text(node):
            continue
        text = _text_of(node)
        is_time_of_day = text is not None and _TIME_OF_DAY.match(text) is not None
        is_by_clock = text is None or is_time_of_day or _CLOCK_WORD.match(text) is not None
        if is_by_clock and _becomes_time(node, tree, is_time_of_day):
            return node.sql("spark")
    return None


def _is_constant_text(node: exp.Expr) -> bool:
    """Return whether this is a text in quotes, or computes a text from constants."""
    from sqlglot import exp

    # Columns and the parameters of lambdas have names.
    return not isinstance(node, exp.Paren) and spark_type(node) == "STRING" and node.find(exp.Identifier) is None


def _text_of(node: exp.Expr) -> str | None:
    """Return the text of a constant; None if it is computed in another way than by the common functions below."""
    from sqlglot import exp

    if isinstance(node, exp.Literal):
        return node.name if node.is_string else None
    if isinstance(node, exp.Paren) or (
        isinstance(node, exp.Cast) and spark_type(node) == spark_type(node.this) == "STRING"
    ):
        return _text_of(node.this)
    if isinstance(node, exp.Upper | exp.Lower):
        text = _text_of(node.this)
        return None if text is None else text.upper() if isinstance(node, exp.Upper) else text.lower()
    if isinstance(node, exp.DPipe) or (isinstance(node, exp.Concat) and not isinstance(node, exp.ConcatWs)):
        texts = [_text_of(part) for part in node.iter_expressions()]
        return None if None in texts else "".join(map(str, texts))
    if isinstance(node, exp.Substring):
        text, start, length = _text_of(node.this), node.args.get("start"), node.args.get("length")
        if text is not None and start and start.is_int and start.to_py() > 0 and length and length.is_int:
            return text[start.to_py() - 1 :][: max(length.to_py(), 0)]
    return None


def _becomes_time(node: exp.Expr, root: exp.Expr, is_time_of_day: bool) -> bool:
    """Return whether it is certain that Spark casts a constant text to a time.

    Of a text that is only one of several possible results Spark makes a time for each record. It then does not know the words,
    but still completes a time of day.
    """
    from sqlglot import exp

    if node is root or (parent := node.parent) is None:
        return False
    if isinstance(parent, exp.Paren):
        return _becomes_time(parent, root, is_time_of_day)
    if isinstance(parent, exp.Cast):
        return spark_type(parent).startswith(_TIMES)
    if _is_time_argument(node, parent) or any(_is_time(one) for one in _of_one_type(node, parent)):
        return True
    if not is_time_of_day or not _is_possible_result(node, parent):
        return False
    return _becomes_time(case if (case := _case_of(parent)) else parent, root, is_time_of_day)


def _is_time(node: exp.Expr) -> bool:
    """Return whether it is certain that an expression gives a date or a timestamp, also after arithmetic with one."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return _is_time(node.this)
    if isinstance(node, exp.Add | exp.Sub):
        sides = [_is_time(node.this), _is_time(node.expression)]
        # The difference of two times is an interval.
        return any(sides) and not (isinstance(node, exp.Sub) and all(sides))
    return spark_type(node).startswith(_TIMES) or function_name(node) in _GIVE_TIMES


def _is_time_argument(node: exp.Expr, function: exp.Expr) -> bool:
    """Return whether a function of times makes a time of this argument. With a pattern it reads a text by the pattern."""
    from sqlglot import exp

    name = function_name(function)
    if name not in _OF_TIMES:
        return False
    if isinstance(function, exp.Anonymous):
        is_part = name in ("date_part", "datepart")
        return node is function.expressions[-1] if is_part else len(function.expressions) == 1
    keys = ("this", "timestamp") if name == "next_day" else ("this", "timestamp", "expression")
    return node.arg_key in keys and not function.args.get("format")


def _is_possible_result(node: exp.Expr, parent: exp.Expr) -> bool:
    """Return whether a part of an expression may be its result, unchanged."""
    from sqlglot import exp

    if isinstance(parent, exp.If | exp.Nvl2):
        return node.arg_key in ("true", "false")
    if isinstance(parent, exp.Case):
        return node.arg_key == "default"
    return isinstance(parent, exp.Coalesce | exp.Greatest | exp.Least) or (
        isinstance(parent, exp.Nullif) and node.arg_key == "this"
    )


def _case_of(branch: exp.Expr) -> exp.Case | None:
    """Return the CASE that has this branch; None if it is no branch."""
    from sqlglot import exp

    is_branch = isinstance(branch, exp.If) and branch.arg_key == "ifs"
    return branch.parent if is_branch and isinstance(branch.parent, exp.Case) else None


def _of_one_type(node: exp.Expr, parent: exp.Expr) -> list[exp.Expr]:
    """Return the parts to whose type Spark casts a text: what it is compared with, and what may be given instead of it."""
    from sqlglot import exp

    if (case := _case_of(parent)) is not None:
        if node.arg_key == "this":
            return [case.this] if case.this else []
        chosen = [branch.args["true"] for branch in case.args["ifs"]]
        return [*chosen, *([case.args["default"]] if case.args.get("default") else [])]
    if isinstance(parent, exp.Case):
        is_default = node.arg_key == "default"
        return [branch.args["true" if is_default else "this"] for branch in parent.args["ifs"]]
    if isinstance(parent, exp.If | exp.Nvl2):
        return [parent.args[name] for name in ("true", "false") if name != node.arg_key and parent.args.get(name)]
    comparisons = (
        exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.NullSafeEQ | exp.NullSafeNEQ | exp.EqualNull
    )
    sums = exp.Add | exp.Sub
    if isinstance(
        parent, comparisons | sums | exp.Between | exp.In | exp.Coalesce | exp.Greatest | exp.Least | exp.Nullif
    ):
        return [one for one in parent.iter_expressions() if one is not node]
    return []
