"""The time limits of the DAGs that hold an application: what ends them, and that the hold is always released."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout
from tests.support.airflow.approving import RESTORE_ASKED, run_of

from tidemark.operations.case.case import FAILED
from tidemark.settings import project_root
from tidemark_airflow import cases


def dag_of(name: str) -> DAG:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", project_root() / "dags" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: DAG = module.dag
    return found


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("repair", ["change"]),
        ("rescale", ["change"]),
        ("reset", ["change"]),
        ("upgrade", ["change"]),
        ("restore_oncall", ["restore", "verify", "swap"]),
    ],
)
def test_a_run_should_not_end_before_its_answer_and_every_try_of_its_work(name: str, work: list[str]) -> None:
    dag = dag_of(name)
    steps = [dag.get_task(each) for each in work]
    first, others = steps[0], steps[1:]
    needed = dag.get_task("approval").response_timeout
    needed += first.execution_timeout * (first.retries + 1)
    needed += sum((each.execution_timeout for each in others), timedelta(0))
    needed += sum((dag.get_task(each).execution_timeout for each in ("relaunch", "drain", "release")), timedelta(0))
    assert dag.dagrun_timeout is not None
    assert dag.dagrun_timeout > needed


@pytest.mark.parametrize(("kind", "command"), [("upgrade", "upgrade"), ("restore_oncall", "restore")])
def test_a_step_that_reaches_its_time_limit_should_fail_without_a_retry(
    kind: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    context: dict[str, Any] = {"params": RESTORE_ASKED, "dag_run": run_of(kind)}
    cases.write_down(context)
    with pytest.raises(AirflowFailException, match=f"`tidemark {command} run shopping`"), cases.step(context, "change"):
        raise AirflowTaskTimeout("Timeout, PID: 1")
    assert cases.case_of(context).folder.has("change", FAILED)
