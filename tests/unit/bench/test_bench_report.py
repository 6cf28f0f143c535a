"""The last line of the benchmark, which scripts read: the ratios of medians, and which of them reach their goal."""

from dataclasses import replace
from io import StringIO

import pytest
import typer
from bench import report
from bench.case import AT_LEAST_ONCE, CONSUMER, OURS, PEER
from bench.cases import CASES
from bench.command import _numbers
from bench.measure import Result
from bench.outputs import Verdict
from bench.rates import Rates
from bench.watch import Usage
from rich.console import Console


def _result(
    case: str, side: str, steady: float, restart_s: float, gigabytes: float, first_commit_s: float = 1.0
) -> Result:
    measured = Rates(1.0, first_commit_s, 1.0, from_first_commit=1.0, steady=steady, steady_commits=9)
    usage = Usage(peak_rss_bytes=int(gigabytes * 1e9), cpu_seconds=1.0)
    return Result(case, side, 0, measured, restart_s, _VERDICT, usage, [])


_VERDICT = Verdict(results=1, missing=0, wrong=0, unexpected=0, records=1, digest="d")
_HOT = [
    *(_result("hot", OURS, steady, 12.0, 2.0, 9.0) for steady in (500.0, 900.0, 600.0)),
    _result("hot", PEER, 200.0, 8.0, 2.5, 4.0),
]


def test_the_last_line_should_have_the_ratios_of_the_medians() -> None:
    found = report.ratios(_HOT, [CASES["hot"]], latency=1.234)
    assert report.last_line(found, agree=True) == (
        "bench: hot=3.00 latency=1.23 start=1.50 first_commit=2.25 memory=0.80 outputs_equal=true"
    )
    text = StringIO()
    Console(file=text, width=80).print(report.goals_table(found, [CASES["hot"]]))
    assert "│ start        │ 1.50  │ ≤ 1.0 │ no      │" in text.getvalue()
    assert "│ first_commit │ 2.25  │ –     │ –       │" in text.getvalue()


def test_a_case_should_be_compared_with_the_side_that_it_names() -> None:
    results = [_result("exactly_once", OURS, 480.0, 1.0, 1.0), _result("exactly_once", AT_LEAST_ONCE, 500.0, 1.0, 1.0)]
    cases = [CASES["exactly_once"]]
    found = report.ratios([*results, _result("exactly_once", PEER, 100.0, 1.0, 1.0)], cases, latency=None)
    assert report.last_line(found, agree=True).startswith("bench: exactly_once=0.96 ")
    facts = {"when": "", "cores": 2, "cpu": "", "memory_gb": 1, "java": "", "kafka": "", "pyspark": ""}
    assert "| measure | unit | tidemark | at-least-once | ratio |" in report.markdown(results, cases, facts)


def test_a_case_without_another_side_should_have_no_ratio() -> None:
    results = [_result("processor", OURS, 480.0, 1.0, 1.0), _result("processor", PEER, 100.0, 1.0, 1.0)]
    found = report.ratios(results, [CASES["processor"]], latency=None)
    assert report.last_line(found, agree=True) == "bench: outputs_equal=true"


def test_a_side_that_writes_nothing_should_neither_agree_nor_disagree_and_have_no_goal() -> None:
    ours = [_result("floor", OURS, 500.0, 1.0, 1.0)]
    results = [*ours, replace(_result("floor", CONSUMER, 2_000.0, 1.0, 1.0), verdict=None)]
    cases = [CASES["floor"]]
    assert report.agree(results, "floor")
    assert report.agree(results[1:], "floor") is None
    assert report.agree_in_all(results[1:], cases) is report.agree_in_all([], []) is None
    assert report.agree_in_all(results, cases) is True
    assert report.agree_in_all([*_HOT, *results[1:]], [*cases, CASES["hot"]]) is None
    wrong = [replace(_HOT[0], verdict=replace(_VERDICT, wrong=1))]
    assert report.agree_in_all([*wrong, *results[1:]], [*cases, CASES["hot"]]) is False
    facts = {"when": "", "cores": 2, "cpu": "", "memory_gb": 1, "java": "", "kafka": "", "pyspark": ""}
    assert "output of all runs that write: not compared." in report.markdown(results[1:], cases, facts)
    found = report.ratios(results, cases, latency=None)
    assert report.last_line(found, agree=True) == "bench: floor=0.25 outputs_equal=true"
    text = StringIO()
    Console(file=text, width=80).print(report.goals_table(found, cases))
    assert "│ floor   │ 0.25  │ –    │ –       │" in text.getvalue()
    records = report.rows(results, cases[0])[-1]
    assert (records.measure, len(records.ours), records.peer) == ("output records", 1, [])


def test_a_case_should_run_once_for_each_number_of_keys() -> None:
    case = CASES["hot"].with_keys(1_000_000)
    assert (case.name, case.about, case.keys) == ("hot-1000000", "the case hot with 1,000,000 keys", 1_000_000)
    assert case.events == CASES["hot"].events
    assert _numbers("10000, 1000000", "patients", 2) == [10_000, 1_000_000]


def test_a_case_should_run_once_for_each_number_of_instances() -> None:
    case = CASES["hot"].with_instances(3)
    assert (case.name, case.about, case.instances) == (
        "hot-3-instances", CASES["hot"].about + ", in 3 instances", 3
    )  # fmt: skip
    assert CASES["hot"].with_instances(1) == CASES["hot"]


@pytest.mark.parametrize("text", ["", "many", "1", "10,-1", "10,10"])
def test_numbers_of_keys_that_make_no_sense_should_be_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="numbers of patients, from 2 on"):
        _numbers(text, "patients", 2)


def test_the_last_line_should_leave_out_what_was_not_measured() -> None:
    assert (
        report.last_line(report.ratios([], [], latency=2.0), agree=False) == "bench: latency=2.00 outputs_equal=false"
    )


def test_a_rate_should_reach_its_goal_from_above_and_a_time_from_below() -> None:
    table = report.goals_table(
        {"hot": 1.99, "wide": 2.0, "latency": 2.01, "start": 1.0, "memory": None}, list(CASES.values())
    )
    text = StringIO()
    Console(file=text, width=80).print(table)
    reached = {
        cells[1].strip(): cells[4].strip()
        for cells in (line.split("│") for line in text.getvalue().splitlines())
        if len(cells) > 4
    }
    assert reached == {"hot": "no", "wide": "yes", "latency": "no", "start": "yes"}
