"""The watcher, on a real instance process, without a triggerer."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.airflow.stream_bench import Bench
from tests.support.overview import write_launch, write_run_file

from tidemark.processes import Identity, Place, wait_until
from tidemark.supervision import watch_claim
from tidemark.supervision.instance_files import InstanceFiles, write_json
from tidemark.supervision.launch import launch_or_adopt
from tidemark.supervision.liveness import Observation, observe
from tidemark.supervision.run_file import RunView
from tidemark_airflow import stream_trigger
from tidemark_airflow.progress import Progress, Said
from tidemark_airflow.stream_trigger import (
    BackoffTrigger,
    ElsewhereTrigger,
    HoldTrigger,
    InstanceExited,
    StreamTrigger,
)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_trigger, "_POLL_S", 0.05)
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 0.0)


def trigger_of(bench: Bench, launch_id: str | None = None) -> StreamTrigger:
    return StreamTrigger(
        str(bench.files.var_dir),
        bench.files.key.application_id,
        bench.files.key.instance,
        launch_id or observe(bench.files).launch_id,
    )


async def first_event(trigger: StreamTrigger | BackoffTrigger | ElsewhereTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("no event")


async def watch_until(trigger: StreamTrigger, act: Callable[[], object]) -> dict[str, Any]:
    """Watch, and meanwhile do something in a thread."""
    watching = asyncio.create_task(first_event(trigger))
    await asyncio.to_thread(act)
    return await asyncio.wait_for(watching, 60)


async def watch_and_kill(trigger: StreamTrigger, meanwhile: Callable[[], object]) -> None:
    """What a triggerer does when a user ends the task: cancel, then on_kill."""
    watching = asyncio.create_task(first_event(trigger))
    is_watched = partial(watch_claim.is_held_by, trigger._files, trigger._watcher)
    assert await asyncio.to_thread(wait_until, is_watched, 60)
    await asyncio.to_thread(meanwhile)
    watching.cancel()
    await trigger.on_kill()


@pytest.mark.parametrize("code", [0, 10, 20, 30])
def test_should_fire_the_exit_code(bench: Bench, code: int) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    payload = asyncio.run(watch_until(trigger_of(bench), lambda: bench.order(exit_code=code)))
    assert InstanceExited.from_payload(payload) == InstanceExited(code)


def test_should_watch_without_a_claim_on_a_full_disk_and_claim_the_instance_once_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_trigger, "_TAKE_AGAIN_S", 0.1)
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    is_full = threading.Event()
    is_full.set()
    refused: list[object] = []

    def write(path: Path, value: object) -> None:
        if is_full.is_set():
            refused.append(value)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(path, value)

    monkeypatch.setattr(watch_claim, "write_json", write)
    trigger = trigger_of(bench)

    def make_room() -> None:
        assert wait_until(lambda: len(refused) > 2, 60)
        is_full.clear()
        assert wait_until(lambda: watch_claim.is_held_by(bench.files, trigger._watcher), 60)
        bench.order(exit_code=0)

    assert asyncio.run(watch_until(trigger, make_room)) == {"exit_code": 0}


def test_should_fire_at_once_when_the_instance_ended_while_nobody_watched(bench: Bench) -> None:
    bench.order(exit_code=10)
    launch = launch_or_adopt(bench.files, bench.command).seen.launch_id
    bench.await_end()
    assert asyncio.run(first_event(trigger_of(bench, launch))) == {"exit_code": 10}


def test_should_not_fire_before_the_worker_that_deferred_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 1.0)
    bench.order(exit_code=30)
    launch = launch_or_adopt(bench.files, bench.command).seen.launch_id
    bench.await_end()
    for trigger in (trigger_of(bench, launch), BackoffTrigger(str(bench.files.var_dir), "app", 0, 0.0)):
        started = time.monotonic()
        asyncio.run(first_event(trigger))
        assert time.monotonic() - started >= 1.0


def test_should_fire_without_an_exit_code_when_the_supervisor_was_killed_first(bench: Bench) -> None:
    launched = launch_or_adopt(bench.files, bench.command).seen.launch
    bench.await_state("RUNNING")
    assert launched is not None
    driver = bench.driver()

    def kill_both() -> None:
        psutil.Process(launched.pid).kill()
        assert wait_until(lambda: not launched.process.is_alive(), 60)
        driver.kill()

    assert asyncio.run(watch_until(trigger_of(bench), kill_both)) == {"exit_code": None}


def test_should_hand_over_to_a_later_launch(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    assert asyncio.run(first_event(trigger_of(bench, "an earlier launch"))) == {"exit_code": None}


def test_should_stop_the_instance_cleanly_when_a_user_ends_the_task(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_RTO_S", "0")
    write_json(bench.files.standstill, {"since_ms": 5, "why": "it was down"})
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    asyncio.run(watch_and_kill(trigger_of(bench), lambda: None))
    assert observe(bench.files).exit_code == 0
    assert bench.living() == []
    assert "batch committed" in bench.log()
    assert "last savepoint: id=" in bench.log()
    assert not bench.files.standstill.exists(), "who stopped it wants no alert"


def test_should_ask_for_no_final_savepoint_when_it_is_switched_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_LAST_SAVEPOINT_TIMEOUT_MS", "0")
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    asyncio.run(watch_and_kill(trigger_of(bench), lambda: None))
    assert "batch committed" in bench.log()
    assert "last savepoint" not in bench.log()


def test_should_kill_an_instance_without_a_supervisor_when_it_does_not_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_trigger, "_KILL_AFTER_S", 0.5)
    bench.order(deaf=True)
    launched = launch_or_adopt(bench.files, bench.command).seen.launch
    bench.await_state("RUNNING")
    assert launched is not None

    def kill_supervisor() -> None:
        psutil.Process(launched.pid).kill()
        assert wait_until(lambda: not launched.process.is_alive(), 60)

    asyncio.run(watch_and_kill(trigger_of(bench), kill_supervisor))
    assert bench.living() == []


def test_should_leave_the_killing_to_the_supervisor(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_trigger, "_KILL_AFTER_S", 0.1)
    monkeypatch.setattr(stream_trigger, "_STOP_WAIT_S", 0.5)
    bench.order(deaf=True)
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    asyncio.run(watch_and_kill(trigger_of(bench), lambda: None))
    assert observe(bench.files).liveness.is_alive_here, "it may still be at its last savepoint"


def test_should_not_stop_an_instance_that_another_trigger_now_watches(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    asyncio.run(watch_and_kill(trigger_of(bench), lambda: watch_claim.take(bench.files, "the next one")))
    assert observe(bench.files).liveness.is_alive_here


def test_should_not_stop_a_launch_that_is_not_its_own(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    trigger = trigger_of(bench, "an earlier launch")
    watch_claim.take(bench.files, trigger._watcher)
    asyncio.run(trigger.on_kill())
    assert observe(bench.files).liveness.is_alive_here


@pytest.mark.parametrize(
    "trigger",
    [
        StreamTrigger("/v", "app", 3, "l1", 5.0),
        BackoffTrigger("/v", "app", 3, 12.5),
        StreamTrigger("/v", "app", 3, None, is_standby=True),
        BackoffTrigger("/v", "app", 3, 12.5, is_standby=True),
        HoldTrigger("/v", "app", 3, is_standby=True),
        ElsewhereTrigger("/v", "app", 3, 12.5),
    ],
)
def test_should_be_rebuilt_from_what_it_serializes(
    trigger: StreamTrigger | BackoffTrigger | HoldTrigger | ElsewhereTrigger,
) -> None:
    path, kwargs = trigger.serialize()
    assert path == f"tidemark_airflow.stream_trigger.{type(trigger).__name__}"
    assert type(trigger)(**kwargs).serialize() == (path, kwargs)


def test_should_wait_until_the_backoff_is_over(bench: Bench) -> None:
    trigger = BackoffTrigger(str(bench.files.var_dir), "app", 0, 0.0)
    assert asyncio.run(asyncio.wait_for(first_event(trigger), 60)) == {}


@pytest.mark.parametrize("is_over", [False, True])
def test_should_wait_until_the_instance_no_longer_counts_as_running_elsewhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    files, gone = bench.files, Identity(1 << 22, 1.0, "b")
    app, looks = files.key.application_id, 0
    write_launch(files.var_dir, app, 0, Place("other", "b", "pids"), gone)
    write_run_file(files.var_dir, app, 0, pid=gone.pid, boot_id=gone.boot_id)

    def look(at: InstanceFiles) -> Observation:
        nonlocal looks
        looks += 1
        if looks == 3:
            # By now the run file is too old to say that the instance runs.
            os.utime(at.run, (1, 1))
        return observe(at)

    monkeypatch.setattr(stream_trigger, "observe", look)
    trigger = ElsewhereTrigger(str(files.var_dir), app, 0, 0.0 if is_over else time.time() + 600)
    assert asyncio.run(asyncio.wait_for(first_event(trigger), 60)) == {}
    assert looks == (0 if is_over else 3)


@pytest.mark.parametrize("kind", [BackoffTrigger, ElsewhereTrigger])
def test_should_wait_no_longer_when_the_clock_is_set_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[BackoffTrigger | ElsewhereTrigger]
) -> None:
    files, gone = bench.files, Identity(1 << 22, 1.0, "b")
    app, now_s = files.key.application_id, time.time()
    write_launch(files.var_dir, app, 0, Place("other", "b", "pids"), gone)
    write_run_file(files.var_dir, app, 0, pid=gone.pid, boot_id=gone.boot_id)
    trigger = kind(str(files.var_dir), app, 0, now_s + 0.5)
    monkeypatch.setattr(stream_trigger.time, "time", lambda: now_s - 50)
    assert asyncio.run(asyncio.wait_for(first_event(trigger), 20)) == {}


@pytest.mark.parametrize("is_last", [True, False])
def test_should_say_again_and_again_that_it_watches_unless_another_trigger_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    monkeypatch.setattr(stream_trigger, "_RENEW_S", 0.0)
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    trigger, looks = trigger_of(bench), 0

    def look(files: InstanceFiles) -> Observation:
        nonlocal looks
        looks += 1
        if looks == 3:
            if not is_last:
                watch_claim.take(files, "another")
            os.utime(files.watcher, (1, 1))
        if looks == 5:
            bench.driver().kill()
            bench.await_end()
        return observe(files)

    monkeypatch.setattr(stream_trigger, "observe", look)
    asyncio.run(asyncio.wait_for(first_event(trigger), 60))
    assert watch_claim.is_watched(bench.files) is is_last


def view(state: str, written_at: float, **values: object) -> RunView:
    return RunView(Identity(7, 1.0, "b"), state, written_at, values)


def test_should_log_each_state_once_and_progress_at_intervals() -> None:
    progress = Progress(every_s=30)
    assert progress.said(None, 100) == Said()

    def lines(run: RunView, now: float) -> list[str]:
        return progress.said(run, now).lines

    assert lines(view("CREATED", 100), 100) == ["state - -> CREATED (pid 7)"]
    assert lines(view("RESTORING", 101, restoring={"store": "s"}), 101) == [
        "state CREATED -> RESTORING (pid 7)",
        "RESTORING restoring={'store': 's'}",
    ]
    assert lines(view("RESTORING", 102), 102) == []
    assert lines(view("RUNNING", 103, batch=4), 103) == ["state RESTORING -> RUNNING (pid 7)", "RUNNING batch=4"]
    assert lines(view("RUNNING", 132, batch=5), 132.9) == []
    assert progress.said(view("RUNNING", 132, batch=6), 133) == Said(
        ["RUNNING batch=6"], {"state": "RUNNING", "seen_at": 133, "silent_s": 1, "batch": 6}
    )


def test_should_report_progress_when_the_clock_was_set_back() -> None:
    progress = Progress(every_s=30)
    progress.said(view("RUNNING", 5000, batch=1), 5000)
    assert progress.said(view("RUNNING", 1400, batch=2), 1400).lines == ["RUNNING batch=2"]
    assert progress.said(view("RUNNING", 1429, batch=3), 1429).lines == []
    assert progress.said(view("RUNNING", 1430, batch=4), 1430).lines == ["RUNNING batch=4"]


@pytest.mark.parametrize(("silent_s", "said"), [(59, False), (60, True), (61, True)])
def test_should_report_an_instance_that_gives_no_sign_of_life(silent_s: float, said: bool) -> None:
    progress = Progress(every_s=30)
    progress.said(view("RUNNING", 1000, batch=1), 1000)
    seen = progress.said(view("RUNNING", 1000, batch=1), 1000 + silent_s)
    assert any("has not written its run file" in line for line in seen.lines) is said
    assert seen.figures is not None
    assert seen.figures["silent_s"] == silent_s
