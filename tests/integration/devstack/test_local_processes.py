"""Processes: identified by start time, found by their mark, and all of them ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tidemark import processes
from tidemark.processes import Identity

# A child that takes no notice of SIGTERM, as an orphan of a crashed part may, and says when it is ready.
STUBBORN = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
)
PARENT = f"import subprocess,sys,time; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); time.sleep(300)"


@pytest.fixture
def own_mark() -> str:
    return f"test-{uuid.uuid4()}"


def start(code: str, mark: str, folder: Path) -> Identity:
    return processes.start([sys.executable, "-c", code], folder / "log", os.environ | {processes.MARK: mark}, folder)


def ready(folder: Path) -> bool:
    return processes.wait_until(lambda: "ready" in (folder / "log").read_text(), 60)


def test_should_still_count_the_cpu_time_of_a_child_that_has_ended() -> None:
    before = processes.cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert processes.cpu_seconds() - before > 0.4


def test_should_not_treat_a_reused_pid_as_alive() -> None:
    me = Identity.of(os.getpid())
    assert me is not None
    assert me.is_alive()
    assert me == Identity.own()
    assert not replace(me, started_after_boot_s=me.started_after_boot_s - 0.01).is_alive()
    assert not replace(me, boot_id="an earlier one").is_alive()


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_should_know_a_process_after_the_wall_clock_was_set(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Identity.own()
    booted_at = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted_at + step_s)
    assert before.is_alive()
    assert Identity.own() == before


def test_should_give_no_identity_to_a_process_that_never_existed() -> None:
    assert Identity.of(2**22 + 1) is None


def test_should_end_children_that_ignore_sigterm(own_mark: str, tmp_path: Path) -> None:
    parent = start(PARENT, own_mark, tmp_path)
    assert ready(tmp_path)
    processes.stop(parent, timeout_s=60)
    assert processes.carrying(own_mark) == []


def test_should_end_orphans_and_spare_other_processes_in_a_sweep(own_mark: str, tmp_path: Path) -> None:
    other = start("import time; time.sleep(300)", own_mark + "-other", tmp_path / "..")
    parent = start(PARENT, own_mark, tmp_path)
    try:
        assert ready(tmp_path)
        os.kill(parent.pid, signal.SIGKILL)
        assert processes.wait_until(lambda: not parent.is_alive(), 60)
        assert len(processes.carrying(own_mark)) == 1
        assert processes.sweep(own_mark, timeout_s=0.5) == 1
        assert processes.carrying(own_mark) == []
        assert other.is_alive()
    finally:
        processes.stop(other)


def test_should_spare_other_sessions_in_a_sweep_of_one_session(own_mark: str, tmp_path: Path) -> None:
    first = start("import time; time.sleep(300)", own_mark, tmp_path)
    second = start("import time; time.sleep(300)", own_mark, tmp_path)
    try:
        assert processes.sweep(own_mark, session=first.pid) == 1
        assert second.is_alive()
        assert processes.sweep(own_mark, spare={second.pid}) == 0
    finally:
        processes.sweep(own_mark)
    assert not second.is_alive()


def test_should_leave_no_process_when_the_guardian_is_killed(own_mark: str, tmp_path: Path) -> None:
    code = (
        "import os, pathlib, subprocess, sys, time\n"
        "from tidemark import processes\n"
        f"with processes.guarded({own_mark!r}):\n"
        f"    os.environ[processes.MARK] = {own_mark!r}\n"
        f"    subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])\n"
        "    time.sleep(300)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(processes.__file__).parents[1])}
    environment.pop(processes.MARK, None)
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as guardian:
        assert guardian.stdout is not None
        assert guardian.stdout.readline() == "ready\n"
        assert len(processes.carrying(own_mark)) == 1
        guardian.kill()
        guardian.stdout.close()
    assert processes.wait_until(lambda: not processes.carrying(own_mark), 60)


def test_should_wait_until_the_condition_holds_or_the_time_is_over() -> None:
    assert processes.wait_until(lambda: True, 0)
    assert not processes.wait_until(lambda: False, 0.1)


def test_should_treat_a_zombie_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = Identity.of(child.pid)
    assert identity is not None
    assert processes.wait_until(lambda: not identity.is_alive(), 60)
    child.wait()


def test_should_let_a_process_give_way(tmp_path: Path, own_mark: str) -> None:
    identity = start("import time; time.sleep(300)", own_mark, tmp_path)
    processes.give_way(identity.pid)
    assert psutil.Process(identity.pid).nice() == 19
    of_session = Path(f"/proc/{identity.pid}/autogroup")
    assert not of_session.exists() or of_session.read_text().split()[-2:] == ["nice", "19"]
    processes.stop(identity)
    processes.give_way(identity.pid)  # It has ended.


def test_should_not_wait_for_a_process_whose_parent_has_not_asked_how_it_ended(own_mark: str) -> None:
    child = f"{[sys.executable, '-c', 'import time; time.sleep(300)']}, env={os.environ | {processes.MARK: own_mark}}"
    parent = f"import subprocess, time; print(subprocess.Popen({child}).pid, flush=True); time.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as careless:
        assert careless.stdout is not None
        pid = int(careless.stdout.readline())
        assert processes.wait_until(lambda: len(processes.carrying(own_mark)) == 1, 60)
        # Longer than a test may take.
        assert processes.sweep(own_mark, 3600.0) == 1
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        careless.kill()


def test_should_say_whether_a_process_ended_before_it_was_killed(tmp_path: Path, own_mark: str) -> None:
    willing = start("import time; time.sleep(300)", own_mark, tmp_path)
    assert processes.stop(willing, 60.0)
    assert processes.stop(willing, 60.0), "it had ended before"
    stubborn = start(STUBBORN, own_mark, tmp_path)
    assert ready(tmp_path)
    assert not processes.stop(stubborn, 0.1)
    assert not stubborn.is_alive()
