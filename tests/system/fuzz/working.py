"""One process of `make fuzz`: draws cases, compares them, shrinks what differs, and reports."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from tests.system.fuzz.case import Case, as_test
from tests.system.fuzz.checking import compared
from tests.system.fuzz.draw import Only, cases
from tests.system.fuzz.java_side import JavaSide
from tests.system.fuzz.run import Tally
from tests.system.fuzz.shrink import kind_of, shrunk

from tidemark.errors import InvalidTopology
from tidemark.settings import Settings

_REPORT_S = 0.5


class _Stop(Exception):
    """A difference was met, and no more are wanted."""


def work(
    count: int,
    number: int,
    only: Only,
    report: Callable[[Tally], None],
    *,
    keep_going: bool = False,
) -> None:
    """Compare so many cases, drawn from the seed `number`. Raises `BenchFailed`.

    Stops at the first difference unless told to keep going.
    """
    tally, last = Tally(), time.monotonic()

    def met(case: Case) -> None:
        nonlocal tally, last
        verdict = compared(case, java)
        tally.cases += 1
        tally.records += len(case.records)
        tally.commits_each += case.commits_each
        tally.classes.update(found.value for found in verdict.classes)
        tally.not_compared += bool(verdict.not_compared)
        if verdict.difference is not None:
            tally.different += 1
            _note(tally, case, java, seen)
        if time.monotonic() - last > _REPORT_S or (verdict.difference is not None and not keep_going):
            report(tally)
            tally, last = Tally(), time.monotonic()
        if verdict.difference is not None and not keep_going:
            raise _Stop

    seen: set[str] = set()
    with JavaSide(Settings.load()) as java:
        left = count
        while left > 0:
            try:
                left -= _drawn(left, number, only, met)
            except _Stop:
                return
            number += 1_000_003
        report(tally)


def _drawn(count: int, number: int, only: Only, met: Callable[[Case], None]) -> int:
    """Draw so many cases, less those that are refused. How many there were."""
    found = 0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases(only))
    def draw(case: Case) -> None:
        nonlocal found
        try:
            is_legal = bool(case.plan)
        except InvalidTopology:
            is_legal = False
        if not is_legal:
            reject()
        if found < count:
            found += 1
            met(case)

    draw()
    return found


def _note(tally: Tally, case: Case, java: JavaSide, seen: set[str]) -> None:
    """Shrink a case that differs, once for each combination of nodes."""
    rough = kind_of(case.nodes)
    if rough in seen:
        return
    seen.add(rough)
    verdict = compared(case, java)
    kind = _kind(verdict.difference)
    small = shrunk(case, lambda candidate: _kind(compared(candidate, java).difference) == kind)
    name = kind_of(small.nodes)
    text = f"{as_test(small, 'test_should_equal_kafka_streams')}\n{compared(small, java).difference}\n"
    count = tally.failures.get(name, (0, ""))[0]
    tally.failures[name] = (count + 1, text)


def _kind(difference: str | None) -> str | None:
    """What a smaller case must still be: another result, or the same error."""
    if difference is None or difference.startswith(("sink", "store")):
        return difference and "results"
    return difference.partition(":")[0] + difference.partition(":")[2].partition(":")[0]
