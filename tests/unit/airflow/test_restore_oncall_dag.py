"""The wiring of `restore_oncall`: who may approve, what no answer means, and what runs when a step fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from tests.support.airflow.approving import RESTORE_ASKED, run_of

from tidemark.operations.case.approval import AnswerState, PlanAnswer
from tidemark.operations.case.case import RESTORE
from tidemark.settings import project_root
from tidemark.supervision.hold import Hold, read_hold, take_hold
from tidemark_airflow import cases, oncall


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> DAG:
    monkeypatch.setenv("TIDEMARK_ONCALL_APPROVERS", '["ada", "grace"]')
    monkeypatch.setenv("TIDEMARK_ONCALL_RESPONSE_TIMEOUT_MS", "90000")
    path = project_root() / "dags" / "restore_oncall.py"
    spec = importlib.util.spec_from_file_location("restore_oncall_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: DAG = module.approval.dag
    return found


def upstream(dag: DAG, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).upstream_task_ids)


def test_should_ask_the_approvers_and_treat_silence_as_a_rejection(dag: DAG) -> None:
    approval = dag.get_task("approval")
    assert [user["id"] for user in approval.assigned_users] == ["ada", "grace"]
    assert approval.response_timeout == timedelta(seconds=90)
    assert approval.defaults == ["Reject"]
    # A rejection skips the next step alone: what must run in any case is not among those behind it.
    assert not approval.ignore_downstream_trigger_rules
    assert approval.downstream_task_ids == {"fence"}


def test_should_be_a_dry_run_by_default(dag: DAG) -> None:
    assert dag.params["dry_run"] is True
    gate = dag.get_task("unless_dry_run")
    assert gate.downstream_task_ids == {"approval"}
    assert not gate.ignore_downstream_trigger_rules
    assert upstream(dag, "fence") == {"approval"}


@pytest.mark.parametrize(
    ("name", "legal", "illegal"),
    [("tasks", ["0_1", "10_23"], ["0", "0_1 ", "a_b", "../0_1"]), ("stores", ["n"], ["", 3])],
)
def test_should_restore_everything_unless_tasks_or_stores_are_named(
    dag: DAG, name: str, legal: list[Any], illegal: list[Any]
) -> None:
    assert dag.params[name] == []
    given = dag.params.get_param(name)
    assert given.resolve(legal) == legal
    for refused in (*([value] for value in illegal), legal[0]):
        with pytest.raises(ParamValidationError):
            given.resolve(refused)


def test_should_roll_back_when_a_step_up_to_the_swap_fails_and_always_release_and_report(dag: DAG) -> None:
    order = ["fence", "restore", "verify", "swap", "relaunch", "drain"]
    for before, after in pairwise(order):
        assert upstream(dag, after) == {before}
    assert dag.get_task("roll_back").trigger_rule == "one_failed"
    # A relaunch that is slow is no fault of the state that was swapped in.
    assert upstream(dag, "roll_back") == {"fence", "restore", "verify", "swap"}
    assert dag.get_task("release").trigger_rule == "all_done"
    assert upstream(dag, "release") == {"roll_back", "relaunch"}
    assert dag.get_task("report").trigger_rule == "all_done"
    assert upstream(dag, "report") == {"drain", "release"}
    # The report alone decides how the run ends.
    assert [task.task_id for task in dag.leaves] == ["report"]


@pytest.fixture
def same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two runs with the same run_after; the first one has opened its case and holds the application."""
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    first, second = ({"params": RESTORE_ASKED, "dag_run": run_of(RESTORE, asked_by=user)} for user in ("ada", "grace"))
    second["dag_run"].run_id = "the second"
    cases.write_down(first)
    case = cases.case_of(first).case
    take_hold(tmp_path, case.application_id, Hold(case.case_id, case.reason, 1))
    return first, second


@pytest.mark.parametrize(
    "step", [oncall.preflight, oncall.plan, cases.fence, oncall.restore, cases.release, cases.report]
)
@pytest.mark.parametrize("is_done", [False, True])
def test_a_run_should_neither_act_on_nor_end_well_with_the_case_of_another_run(
    same_time: tuple[dict[str, Any], dict[str, Any]], step: Callable[[dict[str, Any]], Any], is_done: bool
) -> None:
    first, second = same_time
    opened = cases.case_of(first)
    if is_done:
        answer = PlanAnswer(opened.case.case_id, "aa", "Approve", "7", "ada", "then", "ada", AnswerState.DONE)
        opened.folder.write("answer.json", asdict(answer))
        assert cases.is_done(first)
    files = sorted(path.name for path in opened.folder.folder.iterdir())
    with pytest.raises(AirflowFailException, match="the run the second of restore_oncall does nothing"):
        step(second)
    assert sorted(path.name for path in opened.folder.folder.iterdir()) == files
    assert read_hold(opened.settings.var_dir, opened.case.application_id) is not None
