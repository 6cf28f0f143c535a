"""The contracts of a topology (`expects=`) as checks of the audit, one per rule, with Great Expectations' own expectations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.audit.expectations import Check
from tidemark.topology.contracts import sinks_with_columns
from tidemark.topology.plan import Column, Expected, Sink, Source, SubTopology, TopologyPlan

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_REMEDY = "look at the quarantined coordinates; correct the writer, or the contract in the topology"


@dataclass(frozen=True)
class Contract:
    """The expectations on one topic's records, and the columns to read them with."""

    topic: str
    subtopology: SubTopology
    is_source: bool
    columns: tuple[Column, ...]
    checks: tuple[Check, ...]

    @property
    def asset(self) -> str:
        """Return the name of its table and suite."""
        return f"contract of {self.topic}"


def contracts(plan: TopologyPlan) -> list[Contract]:
    """Return the contract of each topic of a topology that has one. All its paths have the same one.

    An audit reads a topic that the topology writes and reads as a source, so the contract of its sink is checked there, unless
    the source does not read all columns of the contract with their types.
    """
    readers = {
        source.topic: (subtopology, source) for subtopology in plan.subtopologies for source in subtopology.sources
    }
    found: dict[str, Contract] = {}
    for subtopology in plan.subtopologies:
        for source in subtopology.sources:
            if source.expects:
                checks = _checks(source.topic, source.expects)
                found.setdefault(source.topic, Contract(source.topic, subtopology, True, source.schema, checks))
        for sink, columns in sinks_with_columns(subtopology):
            if sink.expects:
                checks = _checks(sink.topic, sink.expects)
                contract = Contract(sink.topic, subtopology, False, columns, checks)
                if sink.topic in readers:
                    contract = _at_source(contract, sink, *readers[sink.topic])
                found.setdefault(sink.topic, contract)
    return list(found.values())


def _at_source(contract: Contract, sink: Sink, subtopology: SubTopology, source: Source) -> Contract:
    """Return the contract of a sink as one of the source that reads its topic, if the source has the contract's columns."""
    named = {one.column for one in sink.expects}
    if not {column for column in contract.columns if column.name in named} <= set(source.schema):
        return contract
    return Contract(contract.topic, subtopology, True, source.schema, contract.checks)


def _checks(topic: str, expects: Sequence[Expected]) -> tuple[Check, ...]:
    return tuple(
        Check(f"{topic}: {says}", f"contract of {topic}", unexpected, f"of {topic}, {says}", _REMEDY, rule=rule)
        for one in expects
        for rule, says, unexpected in _rules(one)
    )


def _rules(one: Expected) -> Iterator[tuple[Expected, str, str]]:
    """Yield each rule separately, with its sentence and the Spark SQL condition of rows that break it."""
    column = f"`{one.column}`"
    if one.not_null:
        yield Expected(one.column, True, None, None, None, None), f"{one.column} is not null", f"{column} IS NULL"
    if one.low is not None or one.high is not None:
        bounds = [(one.low, "<", "at least"), (one.high, ">", "at most")]
        said = " and ".join(f"{word} {bound}" for bound, _, word in bounds if bound is not None)
        broken = " OR ".join(f"{column} {sign} {bound!r}" for bound, sign, _ in bounds if bound is not None)
        yield Expected(one.column, False, one.low, one.high, None, None), f"{one.column} is {said}", broken
    if one.values is not None:
        listed = ", ".join(_literal(value) for value in one.values)
        rule = Expected(one.column, False, None, None, one.values, None)
        yield rule, f"{one.column} is one of {listed}", f"{column} NOT IN ({listed})"
    if one.pattern is not None:
        rule = Expected(one.column, False, None, None, None, one.pattern)
        yield rule, f"{one.column} matches {one.pattern}", f"NOT {column} RLIKE {_literal(one.pattern)}"


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def expectation(check: Check, rule: Expected) -> Expectation:
    """Return the core expectation of Great Expectations that implements a rule."""
    gxe: Any = importlib.import_module("great_expectations.expectations")
    named: dict[str, Any] = {"column": rule.column, "description": check.says, "meta": {"check": check.name}}
    made: Expectation
    if rule.not_null:
        made = gxe.ExpectColumnValuesToNotBeNull(**named)
    elif rule.values is not None:
        made = gxe.ExpectColumnValuesToBeInSet(value_set=list(rule.values), **named)
    elif rule.pattern is not None:
        made = gxe.ExpectColumnValuesToMatchRegex(regex=rule.pattern, **named)
    else:
        made = gxe.ExpectColumnValuesToBeBetween(min_value=rule.low, max_value=rule.high, **named)
    return made
