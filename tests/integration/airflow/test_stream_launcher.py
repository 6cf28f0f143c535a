"""Launch, adopt, supervise and stop, with real processes."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.support.airflow.stream_bench import Bench

from tidemark.folder_lock import is_locked
from tidemark.processes import Place, wait_until
from tidemark.supervision.instance_files import LaunchRecord, read_json, write_json
from tidemark.supervision.instance_log import last_error, read_part
from tidemark.supervision.launch import STOP_GRACE_S, LaunchFailed, LivesElsewhere, launch_or_adopt
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.log_rotation import earlier_part, start_part
from tidemark.supervision.stop import ask_to_stop, kill_rest

pytestmark = pytest.mark.crash


def recorded_exit(bench: Bench) -> int:
    recorded = read_json(bench.files.exit)
    assert isinstance(recorded, dict), bench.log()
    return int(recorded["exit_code"])


def test_should_launch_once_and_then_adopt(bench: Bench) -> None:
    first = launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    second = launch_or_adopt(bench.files, bench.command)
    assert (first.adopted, second.adopted) == (False, True)
    assert first.seen.launch_id == second.seen.launch_id
    assert len(bench.living()) == bench.starts() == 1


def test_should_end_with_one_instance_when_many_launch_at_once(bench: Bench) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: launch_or_adopt(bench.files, bench.command), range(8)))
    assert sorted(result.adopted for result in results) == [False] + [True] * 7
    bench.await_state("RUNNING")
    assert bench.starts() == 1


def test_should_adopt_the_instance_when_the_launcher_dies_right_after_its_fork(bench: Bench) -> None:
    launch = (
        "import os, pickle, sys; from tidemark.supervision import launch;"
        "files, command = pickle.load(sys.stdin.buffer);"
        # The launcher never gets to read that the supervisor is ready.
        "launch.os.fdopen = lambda *_: os.kill(os.getpid(), 9);"
        "launch.launch_or_adopt(files, command)"
    )
    order = pickle.dumps((bench.files, bench.command))
    environment = dict(bench.command.environment)
    killed = subprocess.run([sys.executable, "-c", launch], input=order, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert launch_or_adopt(bench.files, bench.command).adopted
    bench.await_state("RUNNING")
    assert bench.starts() == 1


def test_should_launch_instances_of_different_numbers_separately(make_bench: Callable[..., Bench]) -> None:
    zero, one = make_bench(0), make_bench(1)
    for each in (zero, one):
        assert not launch_or_adopt(each.files, each.command).adopted
    for each in (zero, one):
        each.await_state("RUNNING")
    assert zero.driver().pid != one.driver().pid


def test_should_give_each_launch_a_temporary_folder_and_remove_it_after_a_kill(bench: Bench) -> None:
    def launched() -> tuple[LaunchRecord, Path]:
        record = launch_or_adopt(bench.files, bench.command).seen.launch
        bench.await_state("RUNNING")
        assert record is not None
        return record, Path(bench.driver().environ()["TMPDIR"])

    record, first = launched()
    assert first.parent == bench.command.temporary
    (first / "left").write_text("by a JVM that was killed")
    psutil.Process(record.pid).kill()
    assert wait_until(lambda: not record.process.is_alive(), 60)
    assert is_locked(first), "the driver still lives"
    bench.driver().kill()
    bench.await_end()

    _, second = launched()
    assert [folder for folder in second.parent.iterdir() if folder.is_dir()] == [second]


def test_should_leave_no_temporary_folder_of_a_launch_that_has_ended(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    folder = Path(bench.driver().environ()["TMPDIR"])
    (folder / "left").write_text("by a JVM that was killed")
    bench.driver().kill()
    bench.await_end()
    assert folder.parent == bench.command.temporary
    assert not folder.exists()


@pytest.mark.parametrize("code", [0, 1, 2, 10, 20, 30])
def test_should_record_the_exit_code(bench: Bench, code: int) -> None:
    bench.order(exit_code=code)
    launch_or_adopt(bench.files, bench.command)
    bench.await_end()
    assert recorded_exit(bench) == observe(bench.files).exit_code == code


def test_should_record_a_kill_as_a_shell_does(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    bench.driver().kill()
    bench.await_end()
    assert recorded_exit(bench) == 128 + signal.SIGKILL


def test_should_end_cleanly_when_asked_to_stop(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    ask_to_stop(observe(bench.files))
    bench.await_end()
    assert recorded_exit(bench) == 0
    assert "batch committed" in bench.log()


def test_should_stop_an_instance_that_has_not_begun(bench: Bench) -> None:
    ask_to_stop(launch_or_adopt(bench.files, bench.command).seen)
    bench.await_end()
    assert bench.living() == []


def test_should_kill_what_does_not_stop_within_the_grace_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.supervision.launch.STOP_GRACE_S", 1.0)
    bench.order(deaf=True)
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    ask_to_stop(observe(bench.files))
    bench.await_end()
    assert recorded_exit(bench) == 128 + signal.SIGKILL
    assert bench.living() == []


def test_should_add_the_time_for_a_final_savepoint_to_the_grace_time(bench: Bench) -> None:
    launched = launch_or_adopt(bench.files, replace(bench.command, leave_s=7.0)).seen.launch
    assert launched is not None
    assert f"--grace-s={STOP_GRACE_S + 7.0}" in psutil.Process(launched.pid).cmdline()


def test_should_ask_only_the_driver_to_stop_when_it_is_the_child_of_another_process(bench: Bench) -> None:
    inner = bench.command
    # As spark-submit: a parent that dies at SIGTERM.
    # It passes the code on later than its child ends, as a JVM does, and must not be told to end meanwhile.
    parent = (
        "import subprocess, sys, threading; code = subprocess.run(sys.argv[1:]).returncode;"
        "threading.Event().wait(1); sys.exit(code)"
    )
    launch_or_adopt(bench.files, replace(inner, argv=(sys.executable, "-c", parent, *inner.argv)))
    bench.await_state("RUNNING")
    ask_to_stop(observe(bench.files))
    bench.await_end()
    assert recorded_exit(bench) == 0


def test_should_leave_no_driver_behind_when_its_parent_is_killed(bench: Bench) -> None:
    bench.order(deaf=True)
    inner = bench.command
    parent = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    launch_or_adopt(bench.files, replace(inner, argv=(sys.executable, "-c", parent, *inner.argv)))
    bench.await_state("RUNNING")
    bench.driver().parent().kill()
    bench.await_end()
    assert recorded_exit(bench) == 128 + signal.SIGKILL
    assert bench.living() == []


def test_should_adopt_an_instance_whose_supervisor_was_killed(bench: Bench) -> None:
    launched = launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    assert launched.seen.launch is not None
    supervisor = psutil.Process(launched.seen.launch.pid)
    supervisor.kill()
    assert wait_until(lambda: observe(bench.files).liveness is Liveness.UNSUPERVISED, 60)
    again = launch_or_adopt(bench.files, bench.command)
    assert again.adopted
    assert again.seen.launch_id == launched.seen.launch_id
    ask_to_stop(again.seen)
    bench.await_end()
    assert observe(bench.files).exit_code is None
    assert bench.starts() == 1


def test_should_adopt_an_instance_that_was_started_by_hand(bench: Bench) -> None:
    by_hand = subprocess.Popen(bench.command.argv, env=dict(bench.command.environment), start_new_session=True)
    bench.await_state("RUNNING")
    launched = launch_or_adopt(bench.files, bench.command)
    assert launched.adopted
    assert launched.seen.launch_id is None
    kill_rest(launched.seen)
    assert by_hand.wait() == -signal.SIGKILL


def test_should_adopt_the_launch_that_airflow_remembers_when_its_files_are_lost(bench: Bench) -> None:
    launched = launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    bench.files.launch.unlink()
    bench.files.run.unlink()
    again = launch_or_adopt(bench.files, bench.command, remembered=launched.seen.launch)
    assert again.adopted
    assert bench.starts() == 1


def test_should_start_no_instance_when_another_machine_runs_it(bench: Bench) -> None:
    launched = launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    assert launched.seen.launch is not None
    # It would write its run file again, once a second.
    bench.driver().suspend()
    try:
        run = read_json(bench.files.run)
        write_json(bench.files.launch, replace(launched.seen.launch, place=Place("other", "boot", "pids")).as_json())
        write_json(bench.files.run, {**run, "started_after_boot_s": 0.0})
        with pytest.raises(LivesElsewhere, match="runs on other"):
            launch_or_adopt(bench.files, bench.command)
        write_json(bench.files.run, run)
        write_json(bench.files.launch, launched.seen.launch.as_json())
    finally:
        bench.driver().resume()
    assert bench.starts() == 1


def test_should_say_where_to_look_when_the_supervisor_does_not_start(bench: Bench) -> None:
    shadow = bench.settings.var_dir / "shadow"
    shadow.mkdir()
    (shadow / "psutil.py").write_text("raise ImportError('no psutil here')\n")
    broken = replace(bench.command, environment={**bench.command.environment, "PYTHONPATH": str(shadow)})
    with pytest.raises(LaunchFailed, match=str(bench.files.log)):
        launch_or_adopt(bench.files, broken)
    assert not observe(bench.files).liveness.is_alive_here


def test_should_let_the_later_of_two_copies_win(bench: Bench) -> None:
    launch_or_adopt(bench.files, bench.command)
    bench.await_state("RUNNING")
    other = subprocess.Popen(bench.command.argv, env=dict(bench.command.environment), start_new_session=True)
    assert wait_until(lambda: read_json(bench.files.exit) is not None, 60)
    assert recorded_exit(bench) == 20
    bench.await_state("RUNNING")
    assert launch_or_adopt(bench.files, bench.command).adopted
    other.kill()
    other.wait()


def test_should_begin_a_launch_with_room_in_its_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.supervision.launch.LOG_MOST_BYTES", 20)
    bench.files.log.write_text("older lines\n")
    start_part(bench.files.log).write_text("of an earlier launch")
    launched = launch_or_adopt(bench.files, bench.command).seen.launch
    assert launched is not None
    assert launched.log_start_bytes == 0
    assert "older" not in bench.log()
    assert not start_part(bench.files.log).exists()


def test_should_bound_the_log_of_a_running_instance_and_keep_its_first_and_newest_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.supervision.launch.LOG_MOST_BYTES", 400)
    bench.files.log.write_text("older\n")
    bench.order(says="x" * 100)
    launched = launch_or_adopt(bench.files, bench.command).seen.launch
    assert launched is not None
    log, earlier, start = bench.files.log, earlier_part(bench.files.log), start_part(bench.files.log)

    def position() -> int:
        seen = observe(bench.files).launch
        assert seen is not None
        return seen.log_start_bytes

    assert position() == len("older\n")
    assert wait_until(lambda: position() < 0, 60), "it was cut"
    first = position()
    assert wait_until(lambda: position() < first, 60), "and again"
    bench.order(exit_code=30)
    bench.await_end()
    ended = observe(bench.files)
    assert ended.exit_code == 30, "the position of a log is not that of another launch"
    assert b"\0" not in log.read_bytes() + earlier.read_bytes()
    # A copy is made every two seconds, of about 20 lines.
    assert log.stat().st_size + earlier.stat().st_size < 40_000
    assert start.read_text().startswith(f"instance {bench.files.key} begins\nbatch 1: ")
    lines = read_part(log, position())
    assert last_error(lines) == "ordered to end with 30"
    numbers = [int(line.split()[1].rstrip(":")) for line in lines if line.startswith("batch ")]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "no line is missing around the cut"
    assert len(log.read_text().splitlines()) < len(lines)


def test_should_leave_the_log_of_an_instance_that_stops_as_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.supervision.launch.LOG_MOST_BYTES", 400)
    monkeypatch.setattr("tidemark.supervision.launch.STOP_GRACE_S", 5.0)
    bench.order(says="x" * 100, deaf=True)
    launch_or_adopt(bench.files, bench.command)

    def was_cut() -> bool:
        seen = observe(bench.files).launch
        return seen is not None and seen.log_start_bytes < 0

    assert wait_until(was_cut, 60)
    ask_to_stop(observe(bench.files))
    earlier = earlier_part(bench.files.log)
    cut_at_ns = earlier.stat().st_mtime_ns
    bench.await_end()
    assert earlier.stat().st_mtime_ns == cut_at_ns
    assert bench.files.log.stat().st_size > 2 * 400
