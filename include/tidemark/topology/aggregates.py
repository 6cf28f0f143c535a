"""One aggregate of a record's columns: `count(*)`, `sum(ibi_ms)`, …, checked and typed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Aggregate, Column, Fold, Number
from tidemark.topology.sql import UNKNOWN, bare_column, expression_type, nearest, parse, quoted

_INTEGRAL = frozenset(["TINYINT", "SMALLINT", "INT", "BIGINT"])
_FLOATING = frozenset(["FLOAT", "DOUBLE"])
_CALL = re.compile(r"^\s*([A-Za-z_]\w*)\s*\((.*)\)\s*$", re.DOTALL)
_FOLDS = {fold.value: fold for fold in Fold} | {"avg": Fold.MEAN}
_LEGAL_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def aggregate_name(name: str, where: str) -> str:
    """A name that can be a field of the emitted JSON. Raises `InvalidTopology`."""
    if not isinstance(name, str) or not _LEGAL_NAME.match(name) or name.startswith("__"):
        raise InvalidTopology(
            f"{where}: {name!r} cannot name a result; use letters, digits and underscores, no digit first"
        )
    return name


def named_expression(text: str, columns: Sequence[Column], where: str) -> tuple[str, str]:
    """Split `expr AS name`; a bare column is its own name. Raises `InvalidTopology` where there is no name."""
    from sqlglot import exp

    tree = parse(text, where)
    if isinstance(tree, exp.Alias):
        alias = re.search(r"(?is)^(.*?)(?:\s+as)?\s+`?" + re.escape(tree.alias) + r"`?\s*$", text)
        if alias:
            return aggregate_name(tree.alias, where), alias[1]
    if isinstance(tree, exp.Column):
        found = bare_column(tree.name, columns)
        return (found.name if found else tree.name), text
    raise InvalidTopology(f"{where}: {quoted(text)} has no name; write '{text.strip()} AS name' or name=...")


def build_aggregate(fold: Fold, name: str, text: str | None, columns: Sequence[Column], where: str) -> Aggregate:
    """An aggregate of `text`, None for `count(*)`. The plan's expression yields exactly the number's Spark type.

    Raises `InvalidTopology`: expression, or a type that is neither integral nor floating.
    """
    if text is None:
        if fold is not Fold.COUNT:
            raise InvalidTopology(f"{where}: {fold.value}() needs an expression, e.g. {fold.value}('ibi_ms')")
        return Aggregate(name, fold, None, Number.LONG)
    found = expression_type(text, columns, where)
    if fold is Fold.COUNT:
        return Aggregate(name, fold, text.strip(), Number.LONG)
    if found not in _INTEGRAL | _FLOATING:
        kind = "a type that cannot be told before it runs" if found == UNKNOWN else f"type {found}"
        raise InvalidTopology(
            f"{where}: {fold.value} of {quoted(text)} has {kind}; cast it explicitly, "
            f"e.g. CAST({text.strip()} AS BIGINT) or CAST({text.strip()} AS DOUBLE)"
        )
    number = Number.DOUBLE if found in _FLOATING or fold is Fold.MEAN else Number.LONG
    exact = "DOUBLE" if number is Number.DOUBLE else "BIGINT"
    column = bare_column(text, columns)
    expression = text.strip() if column and column.type == exact else f"CAST({text.strip()} AS {exact})"
    return Aggregate(name, fold, expression, number)


def parse_aggregate(name: str, text: str, columns: Sequence[Column], where: str) -> Aggregate:
    """An aggregate from SQL such as `max(ibi_ms)`. Raises `InvalidTopology` unless it is one call of a known one."""
    from sqlglot import exp

    tree = parse(text, where)
    known = "count(*), count(x), sum(x), min(x), max(x), mean(x)"
    call = _CALL.match(text)
    if isinstance(tree, exp.Alias):
        raise InvalidTopology(f"{where}: {quoted(text)} has a name already: '{name}'; remove AS {tree.alias}")
    if isinstance(tree, exp.Filter):
        raise InvalidTopology(f"{where}: {quoted(text)} has FILTER; aggregate CASE WHEN condition THEN x END instead")
    if call is None or not isinstance(tree, exp.Func) or isinstance(tree, exp.Binary):
        if any(isinstance(node, exp.AggFunc) for node in tree.walk()):
            raise InvalidTopology(
                f"{where}: {quoted(text)} computes with an aggregate; keep the aggregates by themselves, "
                f"one of {known}, and compute where the result is read"
            )
        raise InvalidTopology(f"{where}: {quoted(text)} is not an aggregate; use one of {known}")
    function, argument = call[1].casefold(), call[2].strip()
    if function not in _FOLDS:
        raise InvalidTopology(
            f"{where}: {function}() is not an aggregate that stores keep{nearest(function, list(_FOLDS))}; "
            f"use one of {known}"
        )
    if next(tree.find_all(exp.Distinct), None) is not None:
        raise InvalidTopology(f"{where}: {quoted(text)} has DISTINCT, whose partial results do not merge; remove it")
    # sqlglot knows avg(), and takes mean(x) for a function of the user's.
    if len(tree.args.get("expressions") or ()) > (1 if isinstance(tree, exp.Anonymous) else 0):
        raise InvalidTopology(f"{where}: {quoted(text)} has several arguments; give one")
    if not argument:
        raise InvalidTopology(f"{where}: {quoted(text)} has no argument; use one of {known}")
    everything = function == "count" and isinstance(tree.this, exp.Star | exp.Literal)
    return build_aggregate(_FOLDS[function], name, None if everything else argument, columns, where)
