"""The decision after an instance's end, at its boundaries."""

from __future__ import annotations

import pytest

from tidemark.errors import ExitCode
from tidemark.supervision.outage_file import RecordedOutage
from tidemark.supervision.restart_policy import Adopt, AwaitBrokers, GiveUp, Relaunch, RestartBudget, decide, explain

BUDGET = RestartBudget(max_restarts=3, window_s=100.0, backoff_first_s=2.0, backoff_max_s=5.0)
NOW = 1000.0
OUTAGE = RecordedOutage(5, "no broker answers", ())


@pytest.mark.parametrize("code", [0, 1, 10, 137, 143, 99, None])
def test_should_relaunch_at_once_the_first_time_whatever_the_exit_code(code: int | None) -> None:
    assert decide(code, (), NOW, BUDGET) == Relaunch(0.0, (NOW,))


@pytest.mark.parametrize("restarts", [(), (NOW - 1,) * 9])
def test_should_never_relaunch_a_fenced_instance(restarts: tuple[float, ...]) -> None:
    assert decide(ExitCode.FENCED, restarts, NOW, BUDGET) == Adopt()


@pytest.mark.parametrize("code", [ExitCode.REFUSED, ExitCode.USAGE])
def test_should_not_relaunch_when_that_would_end_the_same_way(code: ExitCode) -> None:
    decision = decide(code, (), NOW, BUDGET)
    assert isinstance(decision, GiveUp)
    assert f"exit code {int(code)}" in decision.reason


@pytest.mark.parametrize(
    ("short_runs", "backoff"),
    [
        (0, 0.0),  # the first is free
        (1, 2.0),
        (2, 4.0),
        (3, 5.0),  # the cap
        (500, 5.0),  # no overflow
    ],
)
def test_should_double_the_backoff_up_to_its_cap(short_runs: int, backoff: float) -> None:
    assert BUDGET.backoff_s(short_runs) == backoff


@pytest.mark.parametrize(
    ("runs_s", "waits_s"),
    [
        # 1 the first relaunch is immediate, whatever the run was
        ([0], [0]),
        # 2 a run is short below two minutes, here 20 s
        ([5, 19], [0, 2]),
        ([5, 20], [0, 0]),
        # 3 each short run in a row doubles the wait, up to its cap
        ([5, 5, 5, 5, 5], [0, 2, 4, 5, 5]),
        # 4 a long run ends the row, also if it was hardly longer, and shorter than a short one with the wait after it
        ([5, 5, 5, 20, 5], [0, 2, 4, 0, 2]),
        ([5, 5, 5, 30, 5, 5], [0, 2, 4, 0, 2, 4]),
    ],
)
def test_should_wait_only_for_short_runs_in_a_row(runs_s: list[float], waits_s: list[float]) -> None:
    budget = RestartBudget(max_restarts=9, window_s=100.0, backoff_first_s=2.0, backoff_max_s=5.0, settled_s=20.0)
    now, kept, waited = NOW, Relaunch(0.0, ()), []
    for ran_s in runs_s:
        now += ran_s
        decision = decide(10, kept.restarts, now, budget, short_runs=kept.short_runs)
        assert isinstance(decision, Relaunch)
        waited.append(decision.after_s)
        now += decision.after_s
        kept = decision
    assert waited == waits_s


def test_should_include_the_backoff_in_the_time_of_the_restart() -> None:
    assert decide(10, (NOW - 1,), NOW, BUDGET) == Relaunch(2.0, (NOW - 1, NOW + 2.0), 1)


@pytest.mark.parametrize(("used", "relaunched"), [(2, True), (3, False), (4, False)])
def test_should_give_up_when_the_restart_budget_is_spent(used: int, relaunched: bool) -> None:
    decision = decide(10, tuple(NOW - 10 - i for i in range(used)), NOW, BUDGET)
    assert isinstance(decision, Relaunch) is relaunched
    if isinstance(decision, GiveUp):
        assert f"{used} times within 100 s" in decision.reason


@pytest.mark.parametrize(("age_s", "counted"), [(99.0, True), (100.0, False), (101.0, False)])
def test_should_forget_restarts_older_than_the_window(age_s: float, counted: bool) -> None:
    decision = decide(10, (NOW - age_s,), NOW, BUDGET)
    assert isinstance(decision, Relaunch)
    assert (decision.after_s > 0) is counted
    assert len(decision.restarts) == 1 + counted


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "without a recorded exit code"),
        (0, "stopped cleanly"),
        (20, "fenced"),
        (137, "killed by signal 9"),
        (99, "code 99"),
    ],
)
def test_should_describe_an_exit_code_in_words(code: int | None, words: str) -> None:
    assert words in explain(code)


@pytest.mark.parametrize("used", [0, 2, 3, 400])
def test_should_not_count_a_relaunch_while_brokers_are_away(used: int) -> None:
    assert decide(10, (NOW - 1,) * used, NOW, BUDGET, OUTAGE) == AwaitBrokers(OUTAGE, BUDGET.backoff_max_s)


@pytest.mark.parametrize(("code", "decision"), [(20, Adopt), (30, GiveUp), (2, GiveUp), (137, Relaunch), (1, Relaunch)])
def test_should_wait_for_brokers_only_when_they_caused_the_end(code: int, decision: type) -> None:
    assert isinstance(decide(code, (), NOW, BUDGET, OUTAGE), decision)
