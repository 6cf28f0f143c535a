"""The task: launch or adopt, resume, relaunch, give up; with real processes and a task state of plain values."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError
from tests.support.airflow.stream_bench import Bench
from tests.support.airflow.stream_task import Task
from tests.support.overview import write_launch, write_run_file

from tidemark.alerts import AlertKind
from tidemark.clock import wall_clock_ms
from tidemark.processes import Identity, Place
from tidemark.settings import Settings
from tidemark.supervision import launch, watch_claim
from tidemark.supervision.hold import Hold, release_hold, take_hold
from tidemark.supervision.instance_files import InstanceFiles, read_json, write_json
from tidemark.supervision.launch import Command, launch_or_adopt
from tidemark.supervision.liveness import RUN_FILE_FRESH_S, observe
from tidemark.supervision.local_instances import read_instances
from tidemark.supervision.outage_file import RecordedOutage, recorded_outages, write_outage
from tidemark.supervision.restart_policy import RestartBudget
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.stop import kill_rest
from tidemark_airflow import stream_operator
from tidemark_airflow.alerting import Alarm
from tidemark_airflow.pausing import stop_launched
from tidemark_airflow.rto_watch import RtoWatch
from tidemark_airflow.stream_operator import LaunchCancelled, StreamOperator
from tidemark_airflow.stream_trigger import BackoffTrigger, BrokerTrigger, ElsewhereTrigger, HoldTrigger, StreamTrigger
from tidemark_airflow.whereabouts import Whereabouts


def task_instance(state: str = "running", try_number: int = 1) -> SimpleNamespace:
    """As Airflow gives it to a task; `state` is what Airflow's database says of the task."""
    return SimpleNamespace(
        try_number=try_number,
        dag_id="d",
        task_id="instance",
        run_id="r",
        map_index=0,
        get_task_states=lambda **_: {"r": {"instance_0": state}},
    )


def relaunch_once(task: Task) -> None:
    """Let the instance end twice with a budget of one restart, which the relaunch in between spends."""
    task.context["params"] = {"max_restarts": 1}
    task.bench.order(exit_code=10, times=9)
    task.step()
    task.bench.await_end()
    task.resume(10)
    task.bench.await_end()


def test_should_launch_and_defer_to_the_trigger(task: Task) -> None:
    trigger = task.step()
    assert isinstance(trigger, StreamTrigger)
    assert task.deferred is not None
    assert task.deferred.method_name == "resume"
    assert trigger.launch_id == observe(task.bench.files).launch_id
    assert task.context["task_state_store"].get("launch")["launch_id"] == trigger.launch_id


def record_an_end(files: InstanceFiles) -> None:
    """Record that the instance was killed while it stood still, after it had ended once because its brokers were away."""
    write_run_file(files.var_dir, files.key.application_id, files.key.instance, pid=1 << 22, boot_id="b")
    write_json(files.standstill, Standstill(1, "it commits nothing").to_dict())
    write_outage(files.outage, RecordedOutage(1, "no broker leads in[0]", ()))


def test_should_forget_the_ended_instances_that_the_run_does_not_have(
    task: Task, make_bench: Callable[..., Bench]
) -> None:
    kept, surplus = make_bench(1).files, make_bench(2).files
    record_an_end(kept)
    record_an_end(surplus)
    task.context["params"] = {"instances": 2}
    task.step()
    app = surplus.key.application_id
    assert [one.instance for one in read_instances(surplus.var_dir, app)] == [0, 1]
    assert recorded_outages(surplus.var_dir).keys() == {f"{app}-1"}
    assert (kept.standstill.exists(), surplus.standstill.exists()) == (True, False)


def test_should_leave_an_instance_alone_that_runs_although_the_run_does_not_have_it(
    task: Task, make_bench: Callable[..., Bench]
) -> None:
    surplus = make_bench(1)
    launch_or_adopt(surplus.files, surplus.command)
    task.context["params"] = {"instances": 1}
    task.step()
    assert observe(surplus.files).liveness.is_alive_here
    app = surplus.files.key.application_id
    assert [one.instance for one in read_instances(surplus.files.var_dir, app)] == [0, 1]
    stop_launched(surplus.settings, app)
    surplus.await_end()
    task.bench.await_end()
    task.resume(0)
    assert [one.instance for one in read_instances(surplus.files.var_dir, app)] == [0]


def test_should_adopt_in_a_retry(task: Task) -> None:
    first = task.step()
    again = task.step()
    assert isinstance(first, StreamTrigger)
    assert isinstance(again, StreamTrigger)
    assert first.launch_id == again.launch_id
    task.bench.await_state("RUNNING")
    assert task.bench.starts() == 1


def test_should_relaunch_at_once_and_then_with_backoff(task: Task) -> None:
    task.bench.order(exit_code=10, times=2)
    task.step()
    task.bench.await_end()
    assert isinstance(task.resume(10), StreamTrigger)
    task.bench.await_end()
    assert isinstance(task.resume(10), BackoffTrigger)
    assert task.context["task_state_store"].get("short_runs") == 1
    assert task.deferred is not None
    assert task.deferred.method_name == "relaunch"
    assert not observe(task.bench.files).liveness.is_alive_here
    assert isinstance(task.step("relaunch", event={}), StreamTrigger)
    task.bench.await_state("RUNNING")
    assert task.bench.starts() == 3


def test_should_fail_when_the_restart_budget_is_spent(task: Task) -> None:
    relaunch_once(task)
    ended = task.fail(10)
    assert isinstance(ended, Alarm)
    assert "its budget" in str(ended)
    assert (ended.what, ended.application_id) == (AlertKind.RESTARTS_SPENT, task.bench.files.key.application_id)
    assert task.bench.starts() == 2


def test_should_have_the_whole_budget_again_when_it_is_cleared_after_it_gave_up(task: Task) -> None:
    relaunch_once(task)
    assert "its budget" in str(task.fail(10))
    # A person clears the task: the context's store is kept.
    task.step()
    task.bench.await_end()
    assert isinstance(task.resume(10), StreamTrigger)
    task.bench.await_end()
    assert "its budget" in str(task.fail(10))


def test_should_keep_the_rest_of_the_budget_in_a_retry(task: Task) -> None:
    relaunch_once(task)
    task.step()
    task.bench.await_end()
    assert "its budget" in str(task.fail(10))


def test_should_not_spend_the_restart_budget_while_brokers_are_away(task: Task) -> None:
    task.context["params"] = {"max_restarts": 1}
    task.bench.order(exit_code=10, times=5, outage="no broker answers at b:9092")
    task.step()
    for _ in range(4):
        task.bench.await_end()
        assert isinstance(task.resume(10), BrokerTrigger)
        assert task.deferred is not None
        assert task.deferred.method_name == "relaunch"
        assert isinstance(task.step("relaunch", event={}), StreamTrigger)
    task.bench.await_end()
    # It ends by itself from now on: the whole budget is there, and then it is spent.
    task.bench.order(exit_code=10, times=2)
    task.step("relaunch", event={})
    task.bench.await_end()
    assert isinstance(task.resume(10), StreamTrigger)
    task.bench.await_end()
    assert "its budget" in str(task.fail(10))


def run_in_another_container(files: InstanceFiles, lasted_s: float = 3600.0) -> None:
    """Leave the files of an instance that a container, which is being replaced, runs or has run until now."""
    app, gone = files.key.application_id, Identity(1 << 22, 1.0, "b")
    write_launch(files.var_dir, app, 0, Place("other", "b", "pids"), gone, age_s=lasted_s)
    write_run_file(files.var_dir, app, 0, pid=gone.pid, boot_id=gone.boot_id)


def make_old(files: InstanceFiles) -> None:
    """Let the run file be too old to say that the instance runs in the other container."""
    written_s = time.time() - RUN_FILE_FRESH_S - 1
    os.utime(files.run, (written_s, written_s))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_should_wait_without_a_retry_or_a_relaunch_while_a_replaced_container_may_still_run_the_instance(
    task: Task, is_resumed: bool
) -> None:
    files = task.bench.files
    run_in_another_container(files)
    trigger = task.resume(None) if is_resumed else task.step()
    assert isinstance(trigger, ElsewhereTrigger)
    assert trigger.until > time.time() + RUN_FILE_FRESH_S
    assert task.deferred is not None
    assert task.deferred.method_name == "after_elsewhere"
    make_old(files)
    assert isinstance(task.step("after_elsewhere", **task.deferred.kwargs), StreamTrigger)
    task.bench.await_state("RUNNING")
    assert task.bench.starts() == 1
    assert task.context["task_state_store"].get("restarts") in (None, [])


def test_should_count_no_relaunch_of_an_instance_whose_container_was_replaced_a_while_ago(task: Task) -> None:
    run_in_another_container(task.bench.files)
    make_old(task.bench.files)
    assert isinstance(task.resume(None), StreamTrigger)
    task.bench.await_state("RUNNING")
    assert task.context["task_state_store"].get("restarts") in (None, [])


SETTLED_S = RestartBudget().settled_s


@pytest.mark.parametrize(("lasted_s", "is_counted"), [(SETTLED_S - 1, True), (SETTLED_S + 1, False)])
def test_should_count_a_relaunch_of_an_instance_that_ended_with_its_container_soon_after_its_launch(
    task: Task, lasted_s: float, is_counted: bool
) -> None:
    """It may be what ends the container, which must not go on for ever."""
    run_in_another_container(task.bench.files, lasted_s)
    assert isinstance(task.resume(None), ElsewhereTrigger)
    assert len(task.context["task_state_store"].get("restarts") or ()) == is_counted


@pytest.mark.parametrize("has_reported", [True, False])
def test_should_give_up_an_instance_that_ends_its_container_at_each_launch(task: Task, has_reported: bool) -> None:
    task.context["params"] = {"max_restarts": 1}
    run_in_another_container(task.bench.files, 1.0)
    if not has_reported:
        task.bench.files.run.unlink()
    task.resume(None)
    run_in_another_container(task.bench.files, 1.0)
    ended = task.fail(None)
    assert isinstance(ended, Alarm)
    assert ended.what is AlertKind.RESTARTS_SPENT


def test_should_wait_on_while_the_triggerer_alone_says_that_the_instance_no_longer_runs_elsewhere(task: Task) -> None:
    run_in_another_container(task.bench.files)
    first = task.step()
    assert task.deferred is not None
    again = task.step("after_elsewhere", **task.deferred.kwargs)
    assert isinstance(first, ElsewhereTrigger)
    assert isinstance(again, ElsewhereTrigger)
    assert again.until == first.until
    assert task.deferred.method_name == "after_elsewhere"
    assert task.bench.starts() == 0


@pytest.mark.parametrize("left_s", [-1, 600], ids=["the time is over", "the clock was set back"])
def test_should_fail_for_good_when_another_machine_goes_on_to_run_the_instance(task: Task, left_s: int) -> None:
    run_in_another_container(task.bench.files)
    with pytest.raises(AirflowFailException, match=r"runs on other.*clear this task"):
        task.new_operator().after_elsewhere(context=task.context, until=time.time() + left_s)
    assert task.bench.starts() == 0


@pytest.mark.parametrize(
    ("code", "is_kept"), [(10, True), (0, False)], ids=["it stands since then", "somebody had stopped it"]
)
def test_should_keep_the_start_of_a_standstill_through_relaunches(task: Task, code: int, is_kept: bool) -> None:
    task.bench.order(exit_code=code)
    task.step()
    task.bench.await_end()
    write_json(task.bench.files.standstill, {"since_ms": 5, "why": "it was down"})
    task.resume(code)
    known = read_json(task.bench.files.standstill)
    assert isinstance(known, dict)
    assert (known["since_ms"] == 5) is is_kept


@pytest.mark.parametrize("is_held", [False, True])
def test_should_forget_a_standstill_when_an_instance_that_was_paused_is_launched_again(
    task: Task, is_held: bool
) -> None:
    """It did not end within its grace time and was killed, and the watcher had counted the time of its stop."""
    files = task.bench.files
    task.bench.order(deaf=True)
    task.step()
    task.bench.await_state("RUNNING")
    assert stop_launched(task.bench.settings, files.key.application_id) == [str(files.key)]
    kill_rest(observe(files))
    task.bench.await_end()
    task.bench.order()
    write_json(files.standstill, {"since_ms": 5, "why": "it is PENDING_SHUTDOWN"})
    if is_held:
        take_hold(files.var_dir, files.key.application_id, Hold("c7", "a restore", 5))
    task.resume(None)
    known = Standstill.of(read_json(files.standstill))
    assert known is None or known.since_ms != 5
    # The record is of that launch only.
    task.bench.order(exit_code=10)
    release_hold(files.var_dir, files.key.application_id, "c7")
    task.step("relaunch")
    task.bench.await_end()
    write_json(files.standstill, {"since_ms": 6, "why": "it was down"})
    task.resume(10)
    known = Standstill.of(read_json(files.standstill))
    assert known is not None
    assert known.since_ms == 6


def test_should_forget_the_time_of_a_pause_that_began_while_the_task_waited_for_a_relaunch(task: Task) -> None:
    """Nothing runs that could be asked to stop, but the time of the pause is no standstill either; a hold after it is one."""
    files, began_ms = task.bench.files, []
    task.bench.order(exit_code=10, times=9)
    task.step()
    task.bench.await_end()
    assert stop_launched(task.bench.settings, files.key.application_id) == []
    take_hold(files.var_dir, files.key.application_id, Hold("c7", "a restore", 5))
    for since_ms in (5, 6):
        write_json(files.standstill, {"since_ms": since_ms, "why": "it was down"})
        task.step("relaunch")
        known = Standstill.of(read_json(files.standstill))
        began_ms.append(known and known.since_ms)
    assert began_ms[0] != 5
    assert began_ms[1] == 6


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_should_forget_the_time_of_a_pause_before_the_first_launch_and_while_another_machine_runs_the_instance(
    task: Task, is_elsewhere: bool
) -> None:
    files, app = task.bench.files, task.bench.files.key.application_id
    if is_elsewhere:
        run_in_another_container(files)
    else:
        take_hold(files.var_dir, app, Hold("c7", "a restore", 5))
    waiting = task.step()
    assert isinstance(waiting, ElsewhereTrigger if is_elsewhere else HoldTrigger)
    write_json(files.standstill, {"since_ms": 5, "why": "it was down"})
    for _ in range(2):
        assert stop_launched(task.bench.settings, app) == []
    RtoWatch(files).look(wall_clock_ms())
    assert read_json(files.standstill) is None, "the trigger counts no time of the pause"
    write_json(files.standstill, {"since_ms": 5, "why": "it was down"})
    task.step("relaunch")
    known = Standstill.of(read_json(files.standstill))
    assert known is not None
    assert known.since_ms != 5


def test_should_record_no_pause_of_an_instance_that_was_started_by_hand(bench: Bench) -> None:
    by_hand = subprocess.Popen(bench.command.argv, env=dict(bench.command.environment), start_new_session=True)
    bench.await_state("RUNNING")
    assert stop_launched(bench.settings, bench.files.key.application_id) == []
    assert not bench.files.pause.exists()
    by_hand.kill()
    by_hand.wait()


def test_should_forget_a_standstill_with_a_new_run_but_not_with_a_new_try(task: Task) -> None:
    files = task.bench.files
    for number in (2, 1):
        write_json(files.standstill, {"since_ms": 5, "why": "it was down"})
        task.context["ti"] = task_instance(try_number=number)
        # It ends at once, so that the next try finds nothing to adopt.
        task.bench.order(exit_code=10)
        task.step()
        task.bench.await_end()
        known = read_json(files.standstill)
        assert isinstance(known, dict)
        assert (known["since_ms"] == 5) is (number == 2)


@pytest.mark.parametrize("code", [2, 30])
def test_should_fail_with_the_last_lines_of_the_instance(task: Task, code: int) -> None:
    task.bench.order(exit_code=code)
    task.step()
    task.bench.await_end()
    ended = task.fail(code)
    assert isinstance(ended, Alarm)
    assert f"Its last message: ordered to end with {code}" in str(ended)
    assert ended.what is AlertKind.STREAM_FAILED
    assert task.bench.starts() == 1


def test_should_adopt_the_copy_that_fenced_it(task: Task) -> None:
    launch_or_adopt(task.bench.files, task.bench.command)
    task.bench.await_state("RUNNING")
    trigger = task.resume(20)
    assert isinstance(trigger, StreamTrigger)
    assert trigger.launch_id == observe(task.bench.files).launch_id
    assert task.bench.starts() == 1


@pytest.fixture
def fenced(task: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Its copy has ended as fenced, and no other runs here: the group is looked at some time later."""
    monkeypatch.setattr(stream_operator, "_SHOWS_ITSELF_S", 0.1)
    task.bench.order(exit_code=20)
    task.step()
    task.bench.await_end()
    trigger = task.resume(20)
    assert isinstance(trigger, BackoffTrigger)
    assert trigger.until > time.time() + Settings.load().session_timeout_ms / 1000, "a dead member is out of the group"
    assert task.deferred is not None
    assert task.deferred.method_name == "after_fence"
    return task


def group_says(monkeypatch: pytest.MonkeyPatch, is_member: bool | None) -> None:
    monkeypatch.setattr(stream_operator, "where_is_it", lambda *_: Whereabouts(is_member, "as c on /10.0.0.7"))


def test_should_say_where_the_other_copy_is_when_it_is_elsewhere(fenced: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    group_says(monkeypatch, True)
    with pytest.raises(AirflowFailException, match=r"/10\.0\.0\.7\. Stop that copy"):
        fenced.new_operator().after_fence(context=fenced.context)
    assert fenced.bench.starts() == 1


def test_should_launch_again_when_the_copy_that_fenced_it_has_ended(
    fenced: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_says(monkeypatch, False)
    assert isinstance(fenced.step("after_fence"), StreamTrigger)
    fenced.bench.await_state("RUNNING")
    assert fenced.bench.starts() == 2
    assert len(fenced.context["task_state_store"].get("restarts")) == 1, "within the budget, so that it comes to an end"


def test_should_look_again_while_the_broker_cannot_say_where_the_other_copy_is(
    fenced: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_says(monkeypatch, None)
    assert isinstance(fenced.step("after_fence"), BackoffTrigger)
    assert fenced.deferred is not None
    assert fenced.deferred.method_name == "after_fence"
    assert fenced.bench.starts() == 1


def test_should_adopt_a_copy_that_started_on_this_machine_meanwhile(fenced: Task) -> None:
    launch_or_adopt(fenced.bench.files, fenced.bench.command)
    fenced.bench.await_state("RUNNING")
    assert isinstance(fenced.step("after_fence"), StreamTrigger)
    assert fenced.bench.starts() == 2, "the first, and the one adopted"


def test_should_copy_only_the_log_of_the_launch_that_ended(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.bench.order(exit_code=10, times=1)
    task.bench.files.log.write_text("from an earlier launch\n")
    task.step()
    task.bench.await_end()
    task.resume(10)
    logged = capsys.readouterr().out
    assert "ordered to end with 10" in logged
    assert "earlier launch" not in logged


def test_should_stop_what_it_launched_when_its_worker_is_told_to_end(task: Task) -> None:
    task.step()
    task.operator.on_kill()
    task.bench.await_end()
    assert task.bench.living() == []


def test_should_start_nothing_when_its_worker_is_told_to_end_before_the_launch(task: Task) -> None:
    def build(*_: object) -> Command:
        task.operator.on_kill()
        return task.bench.command

    task.operator.build_command = build
    with pytest.raises(LaunchCancelled, match="is not launched"):
        task.operator.execute(context=task.context)
    assert task.bench.starts() == 0
    assert watch_claim.recorded(task.bench.files) is None


def test_should_stop_what_it_starts_when_its_worker_is_told_to_end_before_the_launch_is_recorded(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = launch._start

    def told_meanwhile(*arguments: Any) -> None:
        task.operator.on_kill()
        start(*arguments)

    monkeypatch.setattr(launch, "_start", told_meanwhile)
    with pytest.raises(LaunchCancelled, match="is asked to stop"):
        task.operator.execute(context=task.context)
    task.bench.await_end()
    assert task.bench.living() == []


@pytest.mark.parametrize("state", ["failed", "success"])
def test_should_stop_what_it_launched_when_a_user_has_ended_the_task_meanwhile(task: Task, state: str) -> None:
    task.context["ti"] = task_instance(state)
    with pytest.raises(LaunchCancelled, match="is asked to stop"):
        task.operator.execute(context=task.context)
    task.bench.await_end()
    assert task.bench.living() == []


@pytest.mark.parametrize("asks_before", [0, 1], ids=["before its state is read", "after it was read"])
def test_should_stop_what_it_launched_when_its_run_was_deleted_meanwhile(
    task: Task, monkeypatch: pytest.MonkeyPatch, asks_before: int
) -> None:
    """Airflow reports no state of it, stores nothing for it, refuses its deferral, and retries nothing."""
    start, store, asks = launch._start, task.context["task_state_store"], 0

    def deleted_meanwhile(*arguments: Any) -> None:
        start(*arguments)
        store.is_deleted = True

    def states(**_: object) -> dict[str, dict[str, str]]:
        nonlocal asks
        asks += 1
        return {"r": {"instance_0": "running"}} if asks <= asks_before else {}

    monkeypatch.setattr(launch, "_start", deleted_meanwhile)
    task.context["ti"] = SimpleNamespace(**{**vars(task_instance()), "get_task_states": states})
    with pytest.raises(LaunchCancelled, match="is asked to stop"):
        task.operator.execute(context=task.context)
    task.bench.await_end()
    assert task.bench.living() == []


def test_should_retry_when_airflow_stores_no_launch_of_a_task_that_runs(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task.context["task_state_store"], "is_deleted", True)
    task.context["ti"] = task_instance()
    with pytest.raises(AirflowRuntimeError):
        task.operator.execute(context=task.context)
    assert observe(task.bench.files).liveness.is_alive_here


def test_should_stop_nothing_that_a_trigger_already_watches(task: Task) -> None:
    task.step()
    task.bench.await_state("RUNNING")
    watch_claim.take(task.bench.files, "a trigger")
    task.operator.on_kill()
    assert observe(task.bench.files).liveness.is_alive_here


def test_should_show_no_secret_in_its_rendered_fields() -> None:
    assert set(StreamOperator.template_fields) == {"topology", "application_id", "instance"}


@pytest.mark.usefixtures("_outside_of_a_worker")
def test_should_launch_one_instance_for_each_mapped_number(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    benches = [make_bench(number) for number in range(2)]
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(benches[0].settings.var_dir))
    seen: list[Mapping[str, Any]] = []
    for bench in benches:
        trigger = Task(bench).step()
        seen.append(trigger.serialize()[1])
    assert [kwargs["instance"] for kwargs in seen] == [0, 1]
    for bench in benches:
        bench.await_state("RUNNING")
