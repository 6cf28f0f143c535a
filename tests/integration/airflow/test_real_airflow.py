"""A stream in a real Airflow, through spark-submit, with a fake instance: whatever is killed, one instance runs.

In the end, a stream is launched without waiting for audits, however many there are.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr
from tests.support.airflow.operations import MigrateAirflow
from tests.support.airflow.real_airflow import RealAirflow, answered, real_airflow
from tests.support.airflow.stream_bench import FAKE, Bench
from tests.support.alert_notes import NOTE, NOTES_FILE, noted
from tests.support.leaks import arguments_watched, files_with

from tidemark import processes
from tidemark.devstack import airflow_parts
from tidemark.devstack.airflow import AirflowRefused
from tidemark.devstack.airflow_parts import MAINTENANCE_SLOTS
from tidemark.names import MAINTENANCE_POOL
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.instance_files import read_json
from tidemark.supervision.liveness import observe
from tidemark_airflow.stream_trigger import PROGRESS

PASSWORD = "password-of-the-broker"
# Few slots of the executor, because audits that take all of them end two by two.
SLOTS = MAINTENANCE_SLOTS + 2
AUDITS = SLOTS + 1

# The first launch is held between the launch and its hand-over, so that its worker can be killed there.
_DAG = """
import os, pathlib, threading
from tidemark_airflow.dag import stream_dag
from tidemark_airflow.pausing import pauses_dag
from tidemark_airflow.stream_operator import StreamOperator

HOLD = pathlib.Path({hold!r})
_hand_over = StreamOperator._hand_over

def held_hand_over(self, context, files, launched):
    if HOLD.exists():
        HOLD.with_name("worker").write_text(f"{{os.getpid()}} {{os.getppid()}}")
        threading.Event().wait(600)
    _hand_over(self, context, files, launched)

StreamOperator._hand_over = held_hand_over

class Topology:
    application_id = {application_id!r}
    num_standby_replicas = 0
    def describe(self):
        return "a stand-in"

dag = stream_dag({topology!r}, Topology(), script={script!r})
pauses = pauses_dag(lambda: {{dag.dag_id: Topology.application_id, "stream__nobody": "nobody"}})
"""

# Audits that last until a file is there, one more than the executor has slots; and a task as a stream's DAG has them.
_AUDITS = """
import pathlib
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
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

    audit.expand(number=list(range({audits})))

with DAG("stream", schedule=None, start_date=datetime(2025, 1, 1), default_args=_default_args("stand-in")):
    @task
    def launch():
        return "launched"

    launch()
"""


@pytest.mark.airflow
@pytest.mark.crash
@pytest.mark.timeout(1500)
def test_should_keep_exactly_one_instance_show_no_secret_and_put_streams_before_audits(
    bench: Bench,
    migrate_airflow: MigrateAirflow,
    spark_jars: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold, done = tmp_path / "hold", tmp_path / "done"
    hold.touch()
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "audits.py").write_text(_AUDITS.format(done=str(done), audits=AUDITS))
    application_id = bench.files.key.application_id
    (dags / "stand_in.py").write_text(
        _DAG.format(hold=str(hold), application_id=application_id, topology=bench.topology, script=str(FAKE))
    )
    mark = f"tests-{uuid.uuid4()}"
    monkeypatch.setenv(processes.MARK, mark)
    notes = tmp_path / "notes"
    monkeypatch.setenv(NOTES_FILE, str(notes))
    settings = bench.settings.model_copy(update={"alert_callback": NOTE, "sasl_password": SecretStr(PASSWORD)})
    migrate_airflow(settings)
    monkeypatch.setattr(airflow_parts, "PARALLELISM", SLOTS)
    with real_airflow(settings, dags, mark) as airflow, arguments_watched(_secrets(settings)) as told_to_processes:
        dag_id = f"stream__{bench.topology}"
        airflow.api.wait_for_dag(dag_id)
        airflow.api.unpause(dag_id)
        _worker_killed_between_launch_and_hand_over(airflow, bench, dag_id, hold)
        _instance_killed(bench)
        _scheduler_killed(airflow, bench, dag_id)
        _triggerer_killed(airflow, bench, dag_id)
        _log_shows_what_happened(airflow, dag_id)
        _stopped_by_pausing(airflow, bench, dag_id)
        _stopped_by_a_user(airflow, bench, dag_id)
        # Whatever was killed came back by itself, and who stopped it knows: nobody is called.
        assert noted(notes) == []
        _refused_and_paused(airflow, bench, dag_id)
        _alerted_once(notes, application_id, dag_id)
        _launched_while_audits_wait(airflow, done)
    # Airflow's database, too, with its rendered fields and XComs.
    kept = _files_of_secrets(settings)
    assert [oct(path.stat().st_mode & 0o777) for path in kept] == ["0o600", "0o600"]
    assert (told_to_processes, files_with(_secrets(settings), [settings.var_dir], kept)) == ([], [])


def _files_of_secrets(settings: Settings) -> list[Path]:
    """The two files in which secrets may be."""
    return [airflow_parts.secrets_file(settings), airflow_parts.password_file(settings)]


def _secrets(settings: Settings) -> list[str]:
    """The broker's password, the keys that Airflow's parts share, and the passwords of its users."""
    kept = [json.loads(file.read_text()) for file in _files_of_secrets(settings)]
    return [PASSWORD, *(str(value) for each in kept for value in each.values())]


def _one_runs(bench: Bench, timeout_s: float = 180) -> int:
    """Wait for a running instance; there is no second. Returns its pid."""
    bench.await_state("RUNNING", timeout_s)
    assert len(bench.living()) == 1
    return bench.driver().pid


def _another_runs(bench: Bench, earlier: int, timeout_s: float = 180) -> None:
    def relaunched() -> bool:
        run = observe(bench.files).run
        return run is not None and run.process.pid != earlier and run.state == "RUNNING"

    assert wait_until(relaunched, timeout_s), bench.log()
    _one_runs(bench)


def _worker_killed_between_launch_and_hand_over(airflow: RealAirflow, bench: Bench, dag_id: str, hold: Path) -> None:
    worker = hold.with_name("worker")
    assert wait_until(lambda: worker.exists() and len(worker.read_text().split()) == 2, 180)
    pid = _one_runs(bench)
    hold.unlink()
    # The task's process and the worker's that supervises it, so that nobody reports the death.
    for victim in worker.read_text().split():
        psutil.Process(int(victim)).kill()
    airflow.await_task(dag_id, "instance", "deferred")
    assert _one_runs(bench) == pid
    assert bench.starts() == 1


def _instance_killed(bench: Bench) -> None:
    pid = _one_runs(bench)
    bench.driver().kill()
    _another_runs(bench, pid)


def _scheduler_killed(airflow: RealAirflow, bench: Bench, dag_id: str) -> None:
    airflow.await_task(dag_id, "instance", "deferred")
    pid, starts = _one_runs(bench), bench.starts()
    airflow.kill("scheduler")
    assert _one_runs(bench) == pid
    airflow.start("scheduler")
    assert (_one_runs(bench), bench.starts()) == (pid, starts)


def _triggerer_killed(airflow: RealAirflow, bench: Bench, dag_id: str) -> None:
    pid, starts = _one_runs(bench), bench.starts()
    before = bench.files.watcher.read_text()
    airflow.kill("triggerer")
    assert _one_runs(bench) == pid
    airflow.start("triggerer")
    assert wait_until(lambda: bench.files.watcher.read_text() != before, 180)
    assert (_one_runs(bench), bench.starts()) == (pid, starts)
    # Watched again: the next end is seen.
    bench.driver().kill()
    _another_runs(bench, pid)
    airflow.await_task(dag_id, "instance", "deferred")


def _log_shows_what_happened(airflow: RealAirflow, dag_id: str) -> None:
    run_id = airflow.newest_run(dag_id)["dag_run_id"]
    wanted = {"adopted instance", "state - -> RUNNING", "was killed by signal 9", "relaunch 1 of", "begins"}

    def missing() -> set[str]:
        # A second try begins when the worker is killed; a busy machine may add more, because Airflow is impatient here.
        text = "".join(
            airflow.task_log(dag_id, run_id, "instance", 0, n) for n in range(1, airflow.tries(dag_id, run_id) + 1)
        )
        return {said for said in wanted if said not in text}

    # A watcher says something with its first look, which comes after its task is deferred.
    assert wait_until(answered(lambda: not missing()), 180, every_s=0.5), missing()
    shown: dict[str, Any] = {}

    def shows_the_running_instance() -> bool:
        shown.update(airflow.xcom(dag_id, run_id, "instance", 0, PROGRESS) or {})
        return (shown.get("state"), shown.get("partitions")) == ("RUNNING", ["pulse-events[0]"])

    # The task ran again when its instance was killed last; what it shows comes with the first look of its new watcher.
    assert wait_until(answered(shows_the_running_instance), 180, every_s=0.5), shown


def _stopped_by_pausing(airflow: RealAirflow, bench: Bench, dag_id: str) -> None:
    """Within a minute, and not started again before the DAG is unpaused; then in the same run."""
    run_id, starts = airflow.newest_run(dag_id)["dag_run_id"], bench.starts()
    airflow.api.pause(dag_id)
    bench.await_end(timeout_s=240)
    recorded = read_json(bench.files.exit)
    assert isinstance(recorded, dict)
    assert recorded["exit_code"] == 0
    assert bench.log().count("last savepoint: id=") == 1
    airflow.await_task(dag_id, "instance", "scheduled")
    assert bench.starts() == starts
    airflow.api.unpause(dag_id)
    _one_runs(bench)
    airflow.await_task(dag_id, "instance", "deferred")
    assert (bench.starts(), airflow.newest_run(dag_id)["dag_run_id"]) == (starts + 1, run_id)


def _stopped_by_a_user(airflow: RealAirflow, bench: Bench, dag_id: str) -> None:
    starts = bench.starts()
    airflow.api.pause(dag_id)
    airflow.api.stop_run(dag_id, airflow.newest_run(dag_id)["dag_run_id"])
    bench.await_end(timeout_s=240)
    recorded = read_json(bench.files.exit)
    assert isinstance(recorded, dict)
    assert recorded["exit_code"] == 0
    assert bench.log().count("last savepoint: id=") == 2
    assert (bench.living(), bench.starts()) == ([], starts)


def _refused_and_paused(airflow: RealAirflow, bench: Bench, dag_id: str) -> None:
    """Unpausing alone launches again; a refusal fails the run, and Airflow pauses the DAG instead of trying again."""
    starts = bench.starts()
    bench.order(exit_code=30)
    airflow.api.unpause(dag_id)
    was_refused = answered(lambda: bench.starts() > starts and airflow.is_paused(dag_id))
    assert wait_until(was_refused, 180, every_s=0.5)
    assert bench.starts() == starts + 1
    assert bench.living() == []


def _alerted_once(notes: Path, application_id: str, dag_id: str) -> None:
    """By the worker, with what the instance said."""
    assert wait_until(lambda: len(noted(notes)) > 0, 180, every_s=0.5)
    (alert,) = noted(notes)
    assert (alert["what"], alert["application_id"], alert["severity"]) == ("stream failed", application_id, "critical")
    assert alert["message"].startswith(f"{dag_id}.instance: the instance refused to start (exit code 30)")
    assert alert["message"].endswith("Its last message: ordered to end with 30")


def _launched_while_audits_wait(airflow: RealAirflow, done: Path) -> None:
    assert airflow.api.call("GET", f"/api/v2/pools/{MAINTENANCE_POOL}")["slots"] == MAINTENANCE_SLOTS
    for dag_id in ("audits", "stream"):
        airflow.api.wait_for_dag(dag_id)
        airflow.api.unpause(dag_id)
    airflow.api.trigger("audits")
    assert wait_until(lambda: len(_audits(airflow, "running")) == MAINTENANCE_SLOTS, 180, every_s=0.5)
    airflow.api.trigger("stream")
    airflow.await_task("stream", "launch", "success")
    waiting = AUDITS - MAINTENANCE_SLOTS
    assert wait_until(lambda: len(_audits(airflow, "scheduled")) == waiting, 180, every_s=0.5)
    assert wait_until(lambda: len(_audits(airflow, "running")) == MAINTENANCE_SLOTS, 180, every_s=0.5)
    done.touch()
    assert wait_until(lambda: len(_audits(airflow, "success")) == AUDITS, 180, every_s=0.5)


def _audits(airflow: RealAirflow, state: str) -> list[str]:
    try:
        run = airflow.newest_run("audits")["dag_run_id"]
        said = airflow.api.call("GET", f"/api/v2/dags/audits/dagRuns/{run}/taskInstances")
    except AirflowRefused:
        return []  # Too busy to answer: asked again.
    return [one["id"] for one in said["task_instances"] if one["state"] == state]
