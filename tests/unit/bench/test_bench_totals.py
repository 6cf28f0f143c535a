"""The running totals that the events give, and the faults that their verdict must find."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from bench.cases import CASES
from bench.events import blocks
from bench.outputs import Verdict
from bench.totals import Totals

CASE = replace(CASES["processor"], keys=7, events=500)
START_MS = 1_700_000_040_000
Row = dict[str, object]


def _totals() -> list[Row]:
    """Return what a walk over the events gives."""
    pulses: defaultdict[str, int] = defaultdict(int)
    totals: defaultdict[str, int] = defaultdict(int)
    found: list[Row] = []
    for block in blocks(CASE, START_MS):
        for value in block.values:
            event = json.loads(value)
            name = event["patient_id"]
            pulses[name] += 1
            totals[name] += event["ibi_ms"]
            found.append(
                {"patient_id": name, "beat_ms": event["beat_ms"], "pulses": pulses[name], "total_ms": totals[name]}
            )
    return found


ROWS = _totals()


def _judge(rows: list[Row]) -> Verdict:
    totals = Totals(CASE, START_MS)
    for first in range(0, len(rows), 50):
        part = rows[first : first + 50]
        totals.add([str(row["patient_id"]).encode() for row in part], [json.dumps(row).encode() for row in part])
    return totals.verdict()


def test_should_accept_the_totals_after_each_event() -> None:
    verdict = _judge(ROWS[::-1])
    assert verdict.right
    assert verdict.results == verdict.records == CASE.events
    assert verdict.digest == _judge(ROWS).digest


def test_should_find_missing_repeated_and_wrong_totals() -> None:
    assert (_judge(ROWS[1:]).missing, _judge(ROWS[1:]).right) == (1, False)
    assert (_judge([*ROWS, ROWS[-1]]).wrong, _judge([*ROWS, ROWS[-1]]).right) == (1, False)
    wrong = {**ROWS[-1], "total_ms": 1}
    verdict = _judge([*ROWS[:-1], wrong])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (0, 1, 0, False)


@pytest.mark.parametrize(
    "change", [{"beat_ms": START_MS - 1}, {"pulses": 0}, {"pulses": 1000}, {"patient_id": "p00007"}, {"pulses": 71}]
)
def test_should_count_totals_that_belong_to_no_event(change: Row) -> None:
    verdict = _judge([*ROWS, {**ROWS[-1], **change}])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (0, 0, 1, False)
