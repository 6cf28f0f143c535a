"""A hold, with real instance processes: nothing is launched while it exists, and the stream's task waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support.airflow.stream_bench import Bench
from tests.support.airflow.stream_task import Task

from tidemark.errors import OutcomeUnknown, TaskLocked
from tidemark.processes import wait_until
from tidemark.supervision.hold import Hold, read_hold, release_hold, take_hold
from tidemark.supervision.launch import Held, launch_or_adopt
from tidemark.supervision.stop_under_hold import await_running, stop_under_hold
from tidemark_airflow import stream_trigger
from tidemark_airflow.stream_trigger import HoldTrigger, StreamTrigger

pytestmark = pytest.mark.crash


def stop(bench: Bench, by: str = "c1") -> Hold:
    return stop_under_hold(bench.settings.var_dir, bench.files.key.application_id, by, "a restore", [].append)


def test_should_stop_every_instance_and_launch_none_until_released(make_bench: Callable[..., Bench]) -> None:
    zero, one = make_bench(0), make_bench(1)
    app, var_dir = zero.files.key.application_id, zero.settings.var_dir
    for each in (zero, one):
        launch_or_adopt(each.files, each.command)
        each.await_state("RUNNING")
    assert stop(zero).instances == (0, 1)
    assert zero.living() == one.living() == []
    assert "last savepoint" not in zero.log() + one.log(), "a restore does not wait for savepoints"
    with pytest.raises(Held, match="held by c1: a restore"):
        launch_or_adopt(zero.files, zero.command)
    # After a crash in the middle: who ran is still known.
    assert stop(zero).instances == (0, 1)
    with pytest.raises(TaskLocked, match="held by c1"):
        stop(zero, by="c2")
    with pytest.raises(OutcomeUnknown, match=f"{app}-0, {app}-1 did not come back within 0 s"):
        await_running(var_dir, app, (0, 1), 0.1)
    release_hold(var_dir, app, "c1")
    for each in (zero, one):
        assert not launch_or_adopt(each.files, each.command).adopted
    await_running(var_dir, app, (0, 1), 60)


def test_should_kill_an_instance_that_ignores_the_request_to_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.supervision.stop_under_hold.STOP_GRACE_S", 1.0)
    bench.order(deaf=True)
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    assert stop(bench).instances == (0,)
    assert bench.living() == []


def test_should_wait_in_the_task_and_relaunch_without_spending_the_restart_budget(task: Task) -> None:
    bench = task.bench
    assert isinstance(task.step(), StreamTrigger)
    bench.await_state("RUNNING")
    stop(bench)
    waiting = task.step("resume", event={"exit_code": 0})
    assert isinstance(waiting, HoldTrigger)
    assert task.deferred is not None
    assert task.deferred.method_name == "relaunch"
    assert task.context["task_state_store"].get("restarts") is None
    # A new try of the task meanwhile waits, too.
    assert isinstance(task.step(), HoldTrigger)
    assert bench.living() == []
    release_hold(bench.settings.var_dir, bench.files.key.application_id, "c1")
    assert isinstance(task.step("relaunch"), StreamTrigger)
    bench.await_state("RUNNING")
    assert bench.starts() == 2


def test_should_fire_when_the_hold_is_released_and_not_before(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_trigger, "_POLL_S", 0.05)
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 0.0)
    var_dir, app = bench.settings.var_dir, bench.files.key.application_id
    take_hold(var_dir, app, Hold("c1", "why", 5))
    trigger = HoldTrigger(str(var_dir), app, 0)
    path, arguments = trigger.serialize()
    assert (path, arguments) == (
        "tidemark_airflow.stream_trigger.HoldTrigger",
        {"var_dir": str(var_dir), "application_id": app, "instance": 0, "is_standby": False},
    )

    async def watch() -> list[bool]:
        held: list[bool] = []

        async def first() -> None:
            async for _ in trigger.run():
                held.append(read_hold(var_dir, app) is not None)
                return

        watching = asyncio.create_task(first())
        looked = await asyncio.to_thread(wait_until, watching.done, 0.3)
        assert not looked
        release_hold(var_dir, app, "c1")
        await asyncio.wait_for(watching, 60)
        return held

    assert asyncio.run(watch()) == [False]
