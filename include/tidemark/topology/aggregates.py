"""Aggregates of a record's columns, such as `count(*)`, `sum(ibi_ms)` and `quantile(ms, 0.99)`, checked and typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import MOST_STORED_FIELDS, Aggregate, Column, Fold, Number
from tidemark.topology.schema import ROW_TYPE_NAMES
from tidemark.topology.sql.expressions import bare_column, expression_type, nearest, parse, quoted
from tidemark.topology.sql.types import UNKNOWN

if TYPE_CHECKING:
    from sqlglot import exp

_INTEGRAL = frozenset(["TINYINT", "SMALLINT", "INT", "BIGINT"])
_FLOATING = frozenset(["FLOAT", "DOUBLE"])
_CALL = re.compile(r"^\s*([A-Za-z_]\w*)\s*\((.*)\)\s*$", re.DOTALL)
_FOLDS = {fold.value: fold for fold in Fold} | {"avg": Fold.MEAN}
# sqlglot reads DISTINCT as a keyword and knows another quantile(), so these calls are parsed as calls of array().
_OWN_CALL = re.compile(r"^\s*(distinct|quantile|collect)\s*\(", re.IGNORECASE)
_EXAMPLES = {Fold.DISTINCT: "distinct(x)", Fold.QUANTILE: "quantile(x, 0.99)", Fold.COLLECT: "collect(x, 10)"}
_KNOWN = "count(*), count(x), sum(x), min(x), max(x), mean(x), " + ", ".join(_EXAMPLES.values())
# Types whose values Spark's sketch accepts directly; values of all other types are counted by their text.
_SKETCHED = frozenset(["BIGINT", "STRING", "BINARY"])
_NESTED = ("ARRAY", "MAP", "STRUCT")
MOST_COLLECTED = 10_000
_LEGAL_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def aggregate_name(name: str, where: str) -> str:
    """Check that a name can be a field of the emitted JSON, and return it. Raises `InvalidTopology`."""
    if not isinstance(name, str) or not _LEGAL_NAME.match(name) or name.startswith("__"):
        raise InvalidTopology(
            f"{where}: {name!r} cannot name a result; use letters, digits and underscores, no digit first"
        )
    return name


def check_stored_fields(aggregates: Sequence[Aggregate], where: str) -> None:
    """Raise `InvalidTopology` if the aggregates of one store have more fields than a stored value can."""
    fields = sum(aggregate.stored_fields for aggregate in aggregates)
    if fields > MOST_STORED_FIELDS:
        raise InvalidTopology(
            f"{where}: {len(aggregates)} aggregates take {fields} fields of one store, a mean two and any other one; "
            f"{MOST_STORED_FIELDS} is the most; give some of them to another aggregate() with a store of its own"
        )


def named_expression(text: str, columns: Sequence[Column], where: str) -> tuple[str, str]:
    """Split `expr AS name`; a bare column has its own name. Raises `InvalidTopology` if there is no name."""
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


def build_aggregate(
    fold: Fold,
    name: str,
    text: str | None,
    columns: Sequence[Column],
    where: str,
    argument: float | int | None = None,
) -> Aggregate:
    """Build an aggregate of `text`, which is None for `count(*)`. The plan's expression has exactly the type of its fold.

    `argument` is the rank of a quantile, or the number of values that a collect keeps. Raises `InvalidTopology` if expression
    or argument is invalid, or if the fold does not accept the type.
    """
    example = _EXAMPLES.get(fold, f"{fold.value}('ibi_ms')")
    if text is None:
        if fold is not Fold.COUNT:
            raise InvalidTopology(f"{where}: {fold.value}() needs an expression, e.g. {example}")
        return Aggregate(name, fold, None, Number.LONG)
    found = expression_type(text, columns, where)
    expression = text.strip()
    if fold is Fold.COUNT:
        return Aggregate(name, fold, expression, Number.LONG)
    if fold is Fold.DISTINCT:
        return Aggregate(name, fold, _sketched(expression, found, columns, where), Number.LONG)
    if fold is Fold.COLLECT:
        _refuse_limit(argument, where)
        if found not in ROW_TYPE_NAMES:
            raise InvalidTopology(
                f"{where}: collect of {quoted(text)} has {_kind(found)}; cast it explicitly, "
                f"e.g. CAST({expression} AS STRING)"
            )
        return Aggregate(name, fold, expression, Number.TEXT, argument)
    if fold is Fold.QUANTILE:
        _refuse_rank(argument, where)
    if found not in _INTEGRAL | _FLOATING:
        raise InvalidTopology(
            f"{where}: {fold.value} of {quoted(text)} has {_kind(found)}; cast it explicitly, "
            f"e.g. CAST({expression} AS BIGINT) or CAST({expression} AS DOUBLE)"
        )
    is_double = found in _FLOATING or fold in (Fold.MEAN, Fold.QUANTILE)
    cast = _cast(expression, "DOUBLE" if is_double else "BIGINT", columns)
    return Aggregate(name, fold, cast, Number.DOUBLE if is_double else Number.LONG, argument)


def _kind(found: str) -> str:
    return "a type that is unknown before it runs" if found == UNKNOWN else f"type {found}"


def _cast(expression: str, kind: str, columns: Sequence[Column]) -> str:
    column = bare_column(expression, columns)
    return expression if column and column.type == kind else f"CAST({expression} AS {kind})"


def _sketched(expression: str, found: str, columns: Sequence[Column], where: str) -> str:
    if found == UNKNOWN or found.startswith(_NESTED):
        raise InvalidTopology(
            f"{where}: distinct of {quoted(expression)} has {_kind(found)}; cast it explicitly, "
            f"e.g. CAST({expression} AS STRING), or use to_json({expression}) if it is nested"
        )
    if found in _INTEGRAL:
        return _cast(expression, "BIGINT", columns)
    return expression if found in _SKETCHED else _cast(expression, "STRING", columns)


def _refuse_rank(rank: object, where: str) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int | float) or not 0 <= rank <= 1:
        raise InvalidTopology(
            f"{where}: quantile at {rank!r}; give a number from 0 to 1, e.g. 0.99 for the 99th percentile"
        )


def _refuse_limit(limit: object, where: str) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_COLLECTED:
        raise InvalidTopology(
            f"{where}: collect with limit {limit!r}; give a whole number from 1 to {MOST_COLLECTED}, "
            f"because every change writes the whole list to the changelog"
        )


def parse_aggregate(name: str, text: str, columns: Sequence[Column], where: str) -> Aggregate:
    """Parse an aggregate such as `max(ibi_ms)`. Raises `InvalidTopology` unless it is one call of a known aggregate."""
    from sqlglot import exp

    own = _OWN_CALL.match(text) if isinstance(text, str) else None
    tree = parse(text, where) if own is None else _parse_own(text, own, where)
    call = _CALL.match(text)
    if isinstance(tree, exp.Alias):
        raise InvalidTopology(f"{where}: {quoted(text)} already has a name: '{name}'; remove AS {tree.alias}")
    if isinstance(tree, exp.Filter):
        raise InvalidTopology(f"{where}: {quoted(text)} has FILTER; aggregate CASE WHEN condition THEN x END instead")
    if call is None or not isinstance(tree, exp.Func) or isinstance(tree, exp.Binary):
        if own is not None or any(isinstance(node, exp.AggFunc) for node in tree.walk()):
            raise InvalidTopology(
                f"{where}: {quoted(text)} computes with an aggregate; use the aggregates on their own, "
                f"one of {_KNOWN}, and compute with the results downstream"
            )
        raise InvalidTopology(f"{where}: {quoted(text)} is not an aggregate; use one of {_KNOWN}")
    function, argument = call[1].casefold(), call[2].strip()
    if function not in _FOLDS:
        raise InvalidTopology(
            f"{where}: {function}() is not an aggregate that stores can hold{nearest(function, list(_FOLDS))}; "
            f"use one of {_KNOWN}"
        )
    if next(tree.find_all(exp.Distinct), None) is not None:
        raise InvalidTopology(
            f"{where}: {quoted(text)} has DISTINCT, but its partial results cannot be merged; "
            f"use distinct(x), which is approximate, or remove it"
        )
    fold = _FOLDS[function]
    if fold in _EXAMPLES:
        return _build_own(fold, name, text, argument, tree.expressions, columns, where)
    # sqlglot knows avg(), but reads mean(x) as a user's function.
    if len(tree.args.get("expressions") or ()) > (1 if isinstance(tree, exp.Anonymous) else 0):
        raise InvalidTopology(f"{where}: {quoted(text)} has several arguments; give one")
    if not argument:
        raise InvalidTopology(f"{where}: {quoted(text)} has no argument; use one of {_KNOWN}")
    everything = function == "count" and isinstance(tree.this, exp.Star | exp.Literal)
    return build_aggregate(fold, name, None if everything else argument, columns, where)


def _parse_own(text: str, call: re.Match[str], where: str) -> exp.Expr:
    try:
        return parse(f"array({text[call.end() :]}", where)
    except InvalidTopology:
        example = _EXAMPLES[_FOLDS[call[1].casefold()]]
        raise InvalidTopology(f"{where}: {quoted(text)} does not parse; write it like {example}") from None


def _build_own(
    fold: Fold,
    name: str,
    text: str,
    inside: str,
    arguments: Sequence[exp.Expr],
    columns: Sequence[Column],
    where: str,
) -> Aggregate:
    wanted = 1 if fold is Fold.DISTINCT else 2
    if len(arguments) != wanted:
        raise InvalidTopology(
            f"{where}: {quoted(text)} has {len(arguments)} arguments, not {wanted}; write it like {_EXAMPLES[fold]}"
        )
    if fold is Fold.DISTINCT:
        return build_aggregate(fold, name, inside, columns, where)
    # Neither a rank nor a limit contains a comma.
    expression, _, written = inside.rpartition(",")
    return build_aggregate(fold, name, expression, columns, where, _number(written.strip(), fold, where))


def _number(text: str, fold: Fold, where: str) -> float | int:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise InvalidTopology(
            f"{where}: {fold.value} with {quoted(text)}, which is not a number; write it like {_EXAMPLES[fold]}"
        ) from None
