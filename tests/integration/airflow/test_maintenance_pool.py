"""Audits in a real Airflow: a stream is launched without waiting for them, however many there are."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.support.airflow.operations import MigrateAirflow
from tests.support.airflow.real_airflow import RealAirflow, real_airflow

from tidemark import processes
from tidemark.devstack.airflow import AirflowRefused
from tidemark.devstack.airflow_parts import MAINTENANCE_SLOTS, PARALLELISM
from tidemark.names import MAINTENANCE_POOL
from tidemark.processes import wait_until
from tidemark.settings import Settings

# Audits that last until a file is there, one more than the executor has slots; and a task as a stream's DAG has them.
_DAGS = """
import pathlib
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
from tidemark.devstack.airflow_parts import PARALLELISM
from tidemark.processes import wait_until
from tidemark.names import MAINTENANCE_POOL
from tidemark_airflow.dag import _default_args
from tidemark_airflow.dag_kinds import DagKind
from tidemark_airflow.operations import MAINTENANCE_PRIORITY, operations_dag

DONE = pathlib.Path({done!r})

with operations_dag(
    "audits", kind=DagKind.CHECK, description="", use_when="", runbook="", schedule=None, params={{}}, pool=MAINTENANCE_POOL,
    priority=MAINTENANCE_PRIORITY,
):
    @task
    def audit(number):
        assert wait_until(DONE.exists, 600)

    audit.expand(number=list(range(PARALLELISM + 1)))

with DAG("stream", schedule=None, start_date=datetime(2025, 1, 1), default_args=_default_args("stand-in")):
    @task
    def launch():
        return "launched"

    launch()
"""


@pytest.mark.airflow
@pytest.mark.timeout(900)
def test_should_launch_a_stream_when_more_audits_wait_than_there_are_workers(
    migrate_airflow: MigrateAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "both.py").write_text(_DAGS.format(done=str(done)))
    mark = f"tests-{uuid.uuid4()}"
    monkeypatch.setenv(processes.MARK, mark)
    settings = Settings.load(var_dir=tmp_path / "var", state_dir=tmp_path / "state")
    migrate_airflow(settings)
    with real_airflow(settings, dags, mark) as airflow:
        assert airflow.api.call("GET", f"/api/v2/pools/{MAINTENANCE_POOL}")["slots"] == MAINTENANCE_SLOTS
        for dag_id in ("audits", "stream"):
            airflow.api.wait_for_dag(dag_id)
            airflow.api.unpause(dag_id)
        airflow.api.trigger("audits")
        assert wait_until(lambda: len(_audits(airflow, "running")) == MAINTENANCE_SLOTS, 180, every_s=0.5)
        airflow.api.trigger("stream")
        airflow.await_task("stream", "launch", "success")
        waiting = PARALLELISM + 1 - MAINTENANCE_SLOTS
        assert wait_until(lambda: len(_audits(airflow, "scheduled")) == waiting, 180, every_s=0.5)
        assert wait_until(lambda: len(_audits(airflow, "running")) == MAINTENANCE_SLOTS, 180, every_s=0.5)
        done.touch()
        assert wait_until(lambda: len(_audits(airflow, "success")) == PARALLELISM + 1, 180, every_s=0.5)


def _audits(airflow: RealAirflow, state: str) -> list[str]:
    try:
        run = airflow.newest_run("audits")["dag_run_id"]
        said = airflow.api.call("GET", f"/api/v2/dags/audits/dagRuns/{run}/taskInstances")
    except AirflowRefused:
        return []  # Too busy to answer: asked again.
    return [one["id"] for one in said["task_instances"] if one["state"] == state]
