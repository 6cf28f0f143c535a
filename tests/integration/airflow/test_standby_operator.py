"""The task of a standby: the same supervision as an instance's, with real processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.airflow.stream_bench import Bench
from tests.support.airflow.stream_task import Task

from tidemark.alerts import AlertKind
from tidemark.settings import Settings
from tidemark.supervision import watch_claim
from tidemark.supervision.final_savepoint_request import leaving_path
from tidemark.supervision.hold import Hold, release_hold, take_hold
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, write_json
from tidemark.supervision.launch import launch_or_adopt
from tidemark.supervision.liveness import observe
from tidemark.temporary_folder import application_of
from tidemark_airflow.alerting import Alarm
from tidemark_airflow.command import STANDBY_MODULE, standby_command
from tidemark_airflow.dag import stream_dag
from tidemark_airflow.pausing import stop_launched
from tidemark_airflow.rto_watch import RtoWatch
from tidemark_airflow.stream_operator import StandbyOperator
from tidemark_airflow.stream_trigger import BackoffTrigger, HoldTrigger, StreamTrigger


@pytest.fixture
def standby(
    _outside_of_a_worker: None, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> tuple[Bench, Task]:
    """Standby 0 and its task."""
    made = make_bench(is_standby=True)
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(made.settings.var_dir))
    return made, Task(made)


def test_should_launch_a_standby_beside_the_instance_with_its_number(
    standby: tuple[Bench, Task], make_bench: Callable[..., Bench]
) -> None:
    bench, task = standby
    instance = make_bench()
    launch_or_adopt(instance.files, instance.command)
    instance.await_state("RUNNING")
    trigger = task.step()
    assert isinstance(trigger, StreamTrigger)
    assert (trigger.is_standby, trigger.launch_id) == (True, observe(bench.files).launch_id)
    bench.await_state("RUNNING")
    assert instance.starts() == 2
    # A retry of the task adopts it, and so does a second operator.
    again = task.step()
    assert isinstance(again, StreamTrigger)
    assert again.launch_id == trigger.launch_id
    assert launch_or_adopt(bench.files, bench.command).adopted
    assert bench.starts() == 2


def test_should_relaunch_a_killed_standby_at_once_and_then_with_backoff(standby: tuple[Bench, Task]) -> None:
    bench, task = standby
    task.step()
    bench.await_state("RUNNING")
    bench.driver().kill()
    bench.await_end()
    assert isinstance(task.resume(137), StreamTrigger)
    bench.await_state("RUNNING")
    bench.driver().kill()
    bench.await_end()
    waiting = task.resume(137)
    assert isinstance(waiting, BackoffTrigger)
    assert waiting.is_standby
    assert bench.starts() == 2


def test_should_not_relaunch_a_standby_that_runs_where_its_triggerer_does_not_see_it(
    standby: tuple[Bench, Task],
) -> None:
    bench, task = standby
    task.step()
    bench.await_state("RUNNING")
    # What a trigger reports that finds neither the launch nor the process on its own machine.
    said = str(task.fail(None))
    assert (
        f"{bench.files.key} runs on {socket.gethostname()}, but the triggerer that watches it does not see it" in said
    )
    assert "serve the queue default" in said
    assert not task.context["task_state_store"].get("restarts")
    assert observe(bench.files).liveness.is_alive_here
    # Clearing the task adopts it.
    assert isinstance(task.step(), StreamTrigger)
    assert bench.starts() == 1


def test_should_raise_an_alert_of_its_own_kind_when_a_standby_ends_for_good(standby: tuple[Bench, Task]) -> None:
    bench, task = standby
    bench.order(exit_code=30)
    task.step()
    bench.await_end()
    ended = task.fail(30)
    assert isinstance(ended, Alarm)
    assert ended.what is AlertKind.STANDBY_FAILED
    assert "the standby refused to start (exit code 30)" in str(ended)


def test_should_not_launch_a_standby_while_the_application_is_held(standby: tuple[Bench, Task]) -> None:
    bench, task = standby
    var_dir, app = bench.settings.var_dir, bench.files.key.application_id
    take_hold(var_dir, app, Hold("c1", "restore", 1))
    waiting = task.step()
    assert isinstance(waiting, HoldTrigger)
    assert waiting.is_standby
    assert bench.starts() == 0
    release_hold(var_dir, app, "c1")
    assert isinstance(task.step("relaunch"), StreamTrigger)


def test_should_stop_a_standby_without_a_savepoint_when_its_task_is_ended(standby: tuple[Bench, Task]) -> None:
    bench, task = standby
    trigger = task.step()
    assert isinstance(trigger, StreamTrigger)
    bench.await_state("RUNNING")
    watch_claim.take(bench.files, trigger._watcher)
    asyncio.run(trigger.on_kill())
    bench.await_end()
    assert observe(bench.files).exit_code == 0
    assert not leaving_path(bench.settings.var_dir, bench.files.key.application_id, 0).exists()


def test_should_stop_standbys_that_airflow_launched_when_the_dag_is_paused(
    standby: tuple[Bench, Task], make_bench: Callable[..., Bench]
) -> None:
    bench, task = standby
    instance = make_bench()
    task.step()
    launch_or_adopt(instance.files, instance.command)
    for each in (bench, instance):
        each.await_state("RUNNING")
    app = bench.files.key.application_id
    assert stop_launched(bench.settings, app) == [f"{app}-0", f"{app}-standby-0"]
    for each in (bench, instance):
        each.await_end()


def test_should_give_a_standby_no_deadline(standby: tuple[Bench, Task], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = standby
    monkeypatch.setenv("TIDEMARK_RTO_S", "1")
    write_json(bench.files.standstill, {"since_ms": 1, "why": "it was down"})
    before = bench.files.standstill.read_text()
    RtoWatch(bench.files).look(10_000_000)
    assert bench.files.standstill.read_text() == before


def test_should_run_what_a_person_types(tmp_path: Path) -> None:
    settings = Settings.load(state_dir=tmp_path)
    files = InstanceFiles(tmp_path, InstanceKey("patient-monitoring", 1, is_standby=True))
    command = standby_command(settings, "patient_monitoring", files)
    assert list(command.argv[1:]) == ["-m", STANDBY_MODULE, "standby", "run", "patient_monitoring", "--number", "1"]
    assert command.environment["TIDEMARK_STATE_DIR"] == str(tmp_path)
    assert command.leave_s == 0
    assert application_of(command.temporary.name) == "patient-monitoring"


class _Topology:
    application_id = "patient-monitoring"

    def __init__(self, standbys: int) -> None:
        self.num_standby_replicas = standbys

    def describe(self) -> str:
        return "a stand-in"


@pytest.mark.parametrize(
    ("standbys", "tasks"), [(0, ["instance", "instances"]), (2, ["instance", "instances", "standby"])]
)
def test_should_have_a_task_for_each_standby_of_the_topology(standbys: int, tasks: list[str]) -> None:
    dag = stream_dag("patient_monitoring", _Topology(standbys))
    assert sorted(dag.task_ids) == tasks
    if standbys:
        mapped = dag.get_task("standby")
        assert mapped.operator_class is StandbyOperator
        assert mapped.expand_input.value == {"instance": [0, 1]}
        (alert,) = mapped.partial_kwargs["on_failure_callback"]
        assert alert.what is AlertKind.STANDBY_FAILED
