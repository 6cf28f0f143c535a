"""The wiring of `restore_oncall`: who may approve, what no answer means, and what runs when a step fails."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from tidemark.settings import project_root


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
