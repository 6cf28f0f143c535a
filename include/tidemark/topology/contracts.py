"""Contracts: expectations on the records of a source or sink, which the audit checks (docs/audit.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Column, Expected, RowSink, Sink, Source, SubTopology, TopologyPlan
from tidemark.topology.sql.expressions import bare_column, nearest

_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NUMBERS = (*_WHOLE, "FLOAT", "DOUBLE")
_EXAMPLE = "write e.g. expect('celsius', not_null=True, between=(30, 45))"


def expect(
    column: str,
    *,
    not_null: bool = False,
    between: tuple[float | None, float | None] | None = None,
    in_set: Sequence[str | int | float | bool] | None = None,
    matches: str | None = None,
) -> Expected:
    """State what each value of a column should be. A null passes every rule except `not_null`.

    `between`: minimum and maximum, both included, None for no bound. `in_set`: the allowed values. `matches`: a regular
    expression that must be found in the value. Use it in `expects=` of `stream()`, `table()` and `to()`. They and this
    function raise `InvalidTopology`.
    """
    where = f"expect({column!r})"
    if not isinstance(column, str) or not column.strip():
        raise InvalidTopology(f"{where}: name a column; {_EXAMPLE}")
    if not not_null and between is None and in_set is None and matches is None:
        raise InvalidTopology(f"{where}: there is no rule for it; {_EXAMPLE}")
    low, high = _bounds(between, where)
    if in_set is not None and (isinstance(in_set, str) or not isinstance(in_set, Sequence) or not in_set):
        raise InvalidTopology(f"{where}: in_set={in_set!r}; give a list of values, in_set=['a', 'b']")
    if matches is not None:
        try:
            re.compile(matches)
        except (re.error, TypeError) as error:
            raise InvalidTopology(f"{where}: matches={matches!r} is not a regular expression: {error}") from None
    return Expected(column.strip(), bool(not_null), low, high, None if in_set is None else tuple(in_set), matches)


def _bounds(between: tuple[float | None, float | None] | None, where: str) -> tuple[float | None, float | None]:
    if between is None:
        return None, None
    pair = tuple(between) if isinstance(between, Sequence) and not isinstance(between, str) else ()
    if len(pair) != 2 or pair == (None, None) or any(not _is_number(bound) for bound in pair if bound is not None):
        raise InvalidTopology(
            f"{where}: between={between!r}; give minimum and maximum as finite numbers, e.g. "
            "between=(0, None) for no maximum"
        )
    low, high = pair
    if low is not None and high is not None and low > high:
        raise InvalidTopology(f"{where}: between={between!r}: {low} is more than {high}, so nothing passes; swap them")
    return low, high


def _is_number(value: object) -> bool:
    """Return whether SQL and Great Expectations can compare a column with the value: NaN and infinity have no literal."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def checked_expects(expects: Sequence[Expected], columns: Sequence[Column], where: str) -> tuple[Expected, ...]:
    """Check the contract of one topic against its columns. Raises `InvalidTopology` naming column and remedy."""
    if isinstance(expects, Expected) or not all(isinstance(one, Expected) for one in expects):
        raise InvalidTopology(f"{where}: expects={expects!r} is not a list of expect(...); {_EXAMPLE}")
    checked = []
    for one in expects:
        column = bare_column(one.column, columns)
        if column is None:
            known = nearest(one.column, [known.name for known in columns])
            raise InvalidTopology(f"{where}: expect('{one.column}'): there is no such column{known}")
        _refuse_type(one, column, where)
        checked.append(Expected(column.name, one.not_null, one.low, one.high, one.values, one.pattern))
    return tuple(checked)


def refuse_different_contracts(plan: TopologyPlan) -> None:
    """Refuse different contracts of one topic, because a record does not show which of them it should keep.

    Without a contract, a source makes no statement about its topic. A sink does: its records would be checked by the contract
    of another path. Raises `InvalidTopology`.
    """
    sinks = [sink for subtopology in plan.subtopologies for sink in subtopology.sinks]
    sources = [source for subtopology in plan.subtopologies for source in subtopology.sources if source.expects]
    known: dict[str, tuple[str, frozenset[Expected]]] = {source.topic: _rules_of(source) for source in sources}
    ruled = {sink.topic for sink in sinks if sink.expects}
    for sink in sinks:
        if sink.topic not in ruled:
            continue
        node, rules = known.setdefault(sink.topic, _rules_of(sink))
        if rules != frozenset(sink.expects):
            raise InvalidTopology(
                f"{sink.node}: topic '{sink.topic}' has another contract at {node}; the audit checks all records of a topic by "
                "one contract: give both the same expects=, or use two topics"
            )


def refuse_different_types(plan: TopologyPlan) -> None:
    """Refuse sinks of one topic that write a column of its contract with different types.

    The audit reads all records of the topic with the same types. Raises `InvalidTopology`.
    """
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for sink, columns in (each for subtopology in plan.subtopologies for each in sinks_with_columns(subtopology)):
        for column in (column for column in columns if column.name in {one.column for one in sink.expects}):
            node, kind = known.setdefault((sink.topic, column.name), (sink.node, column.type))
            if kind != column.type:
                raise InvalidTopology(
                    f"{sink.node}: topic '{sink.topic}' gets column {column.name} as {column.type}, but {node} writes it as "
                    f"{kind}; the audit checks the contract of all its records with one type: cast both to the same type, "
                    "or use two topics"
                )


def sinks_with_columns(subtopology: SubTopology) -> Iterator[tuple[Sink, tuple[Column, ...]]]:
    """Yield each sink of a sub-topology with the columns that it writes."""
    for pipeline in subtopology.pipelines:
        yield from ((sink, pipeline.columns) for sink in pipeline.sinks)
    for node in subtopology.nodes:
        if isinstance(node, RowSink):
            yield node.sink, node.columns


def _rules_of(end: Source | Sink) -> tuple[str, frozenset[Expected]]:
    return end.node, frozenset(end.expects)


def _refuse_type(one: Expected, column: Column, where: str) -> None:
    named = f"{where}: expect('{one.column}')"
    if (one.low is not None or one.high is not None) and column.type not in _NUMBERS:
        raise InvalidTopology(
            f"{named}: between is for numbers, but the column is {column.type}; use in_set or matches"
        )
    if one.pattern is not None and column.type != "STRING":
        raise InvalidTopology(f"{named}: matches is for STRING, but the column is {column.type}; use between or in_set")
    for value in one.values or ():
        fits = {
            "STRING": isinstance(value, str),
            "BOOLEAN": isinstance(value, bool),
            **dict.fromkeys(_WHOLE, isinstance(value, int) and not isinstance(value, bool)),
            **dict.fromkeys(("FLOAT", "DOUBLE"), _is_number(value)),
        }
        if not fits.get(column.type, False):
            raise InvalidTopology(
                f"{named}: in_set has {value!r}, but the column is {column.type}; give values of that type, no NaN and no "
                "infinity"
            )
