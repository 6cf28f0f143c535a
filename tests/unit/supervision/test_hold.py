"""The hold of a command line: kept while the command works, and distinguished from that of a dead process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tidemark.errors import ApplicationHeld, TaskLocked
from tidemark.supervision.hold import (
    Hold,
    HoldingProcess,
    acting_for,
    case_path,
    describe_hold,
    hold_path,
    holding,
    read_hold,
    release_hold,
    require_not_held,
    stale_because,
    stale_remedy,
    take_hold,
)

CASE = "20261122T031500000000Z"
_HOLDS = """
import sys
from pathlib import Path
from tidemark.supervision.hold import holding
with holding(Path(sys.argv[1]), "app", print, takes_over=len(sys.argv) == 2):
    print("held", flush=True)
    sys.stdin.read()
"""
_CONTENDS = """
import os, random, sys
from pathlib import Path
from tidemark.errors import TaskLocked
from tidemark.supervision.hold import holding
folder, rng, had = Path(sys.argv[1]), random.Random(int(sys.argv[2])), 0
while had < 20:
    try:
        with holding(folder, "app", print):
            # Nobody else is in here.
            alone = os.open(folder / "alone", os.O_CREAT | os.O_EXCL)
            os.close(alone)
            for _ in range(rng.randrange(2000)):
                pass
            os.unlink(folder / "alone")
            had += 1
    except TaskLocked:
        pass
"""


@contextmanager
def holding_process(*arguments):
    """Another process that holds the application until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "include"},
        # Under `nohup` it would inherit that SIGHUP is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout.readline() == b"held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def command(tmp_path):
    """Another process that holds the application, and is gone after the test."""
    with holding_process(str(tmp_path)) as process:
        yield process


def test_should_name_the_holder_and_release_at_the_end(tmp_path):
    with holding(tmp_path, "app", print):
        hold = read_hold(tmp_path, "app")
        assert hold.process.pid == os.getpid()
        assert hold.by == f"{hold.process.user}@{hold.process.host}:{os.getpid()}"
        assert hold.reason == hold.process.command
        assert stale_because(tmp_path, "app", hold) is None
        with pytest.raises(ApplicationHeld, match="app is held by"):
            require_not_held(tmp_path, "app")
    assert read_hold(tmp_path, "app") is None
    require_not_held(tmp_path, "app")
    with pytest.raises(ZeroDivisionError), holding(tmp_path, "app", print):
        _ = 1 / 0
    assert read_hold(tmp_path, "app") is None


@pytest.mark.parametrize(
    ("hold", "remedy"),
    [
        (Hold("c1", "why", 5), "run `tidemark clean run clicks`, which removes the hold if nothing is left unfinished"),
        (
            Hold("c1", "why", 5, continued_by="tidemark restore rollback NAME 7"),
            "run `tidemark restore rollback clicks 7`; if nothing is left unfinished, `tidemark clean run clicks` removes the "
            "hold",
        ),
        (
            Hold("me", "tidemark upgrade run clicks", 5, process=HoldingProcess.own()),
            "run the command of the hold again; if nothing is left unfinished, `tidemark clean run clicks` removes the hold",
        ),
    ],
)
def test_should_name_what_continues_the_work_before_what_removes_a_stale_hold(hold, remedy):
    assert stale_remedy(hold, "clicks") == remedy


def test_should_keep_what_continues_the_work_and_name_it_once_the_hold_is_stale(tmp_path):
    with holding(tmp_path, "app", print, continued_by="tidemark restore run NAME --resume 7"):
        dead = replace(read_hold(tmp_path, "app"), by="dead", process=replace(HoldingProcess.own(), pid=2**22 + 1))
    take_hold(tmp_path, "app", dead)
    assert "(process 4194305 of" in describe_hold(tmp_path, "app", dead)
    assert "run `tidemark restore run NAME --resume 7`; " in describe_hold(tmp_path, "app", read_hold(tmp_path, "app"))
    take_hold(tmp_path, "other", Hold("c1", "the case", 5))
    with acting_for("c1"), holding(tmp_path, "other", print, continued_by="tidemark restore run NAME --resume 8"):
        take_hold(tmp_path, "other", Hold("c1", "the case", 5, (1,)))
        during = read_hold(tmp_path, "other")
    assert during == Hold("c1", "the case", 5, (1,), continued_by="tidemark restore run NAME --resume 8")
    assert read_hold(tmp_path, "other") == replace(during, continued_by="")


def test_should_give_a_stale_hold_back_only_if_it_is_asked_to(tmp_path):
    dead = Hold("dead", "why", 5, (0, 1), replace(HoldingProcess.own(), pid=2**22 + 1), continued_by="again")
    for gives_back in (True, False):
        take_hold(tmp_path, "app", dead)
        # What its holder has left half done still is when another command fails.
        with pytest.raises(ZeroDivisionError), holding(tmp_path, "app", print, gives_back=gives_back):
            assert read_hold(tmp_path, "app").process.pid == os.getpid()
            _ = 1 / 0
        assert read_hold(tmp_path, "app") == dead
        with holding(tmp_path, "app", print, gives_back=gives_back):
            assert read_hold(tmp_path, "app").process.pid == os.getpid()
        assert read_hold(tmp_path, "app") == (dead if gives_back else None)
    with holding(tmp_path, "app", print, gives_back=True):
        pass
    assert read_hold(tmp_path, "app") is None


def test_should_refuse_while_the_holder_is_alive(tmp_path, command):
    before = hold_path(tmp_path, "app").read_text()
    with pytest.raises(TaskLocked, match=rf"held by .*:{command.pid} "), holding(tmp_path, "app", print):
        pytest.fail("two at a time")
    assert hold_path(tmp_path, "app").read_text() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_should_release_when_it_is_terminated(tmp_path, command, number):
    command.send_signal(number)
    # Python handles a signal that comes just before a read when the read ends, which nothing else would make it do.
    command.stdin.close()
    assert command.wait(60) == 128 + number
    assert read_hold(tmp_path, "app") is None


def test_should_end_with_the_process_that_changes_nothing(tmp_path):
    """A savepoint of the stopped application that is killed leaves nothing half done, so nobody waits for it."""
    with holding_process(str(tmp_path), "reads") as command:
        with pytest.raises(ApplicationHeld, match=rf"held by .*:{command.pid}: "):
            require_not_held(tmp_path, "app")
        command.kill()
        command.wait()
        assert hold_path(tmp_path, "app").exists()
        require_not_held(tmp_path, "app")
        said = []
        with holding(tmp_path, "app", said.append, takes_over=False):
            assert read_hold(tmp_path, "app").process.pid == os.getpid()
        assert said == []


def test_should_outlive_the_process_of_a_block_that_goes_on_to_change_something(tmp_path):
    with holding(tmp_path, "app", print, takes_over=False):
        assert read_hold(tmp_path, "app").changes_nothing
        with holding(tmp_path, "app", print):
            assert not read_hold(tmp_path, "app").changes_nothing


def test_should_take_over_from_a_killed_process_and_say_so(tmp_path, command):
    command.kill()
    command.wait()
    said = []
    assert f"process {command.pid} of" in stale_because(tmp_path, "app", read_hold(tmp_path, "app"))
    assert "stale" in describe_hold(tmp_path, "app", read_hold(tmp_path, "app"))
    # Nobody launches meanwhile: what was begun may be half done.
    with pytest.raises(ApplicationHeld, match="was killed"):
        require_not_held(tmp_path, "app")
    with holding(tmp_path, "app", said.append):
        assert read_hold(tmp_path, "app").process.pid == os.getpid()
    assert [f":{command.pid} " in line and "was killed" in line for line in said] == [True]
    assert read_hold(tmp_path, "app") is None


def test_should_never_treat_a_holder_as_dead_when_it_cannot_be_looked_up(tmp_path):
    own = HoldingProcess.own()
    for other, is_stale in (
        (replace(own, pid=2**22 + 1), True),
        (replace(own, started_after_boot_s=own.started_after_boot_s - 100), True),
        (replace(own, boot_id="before the restart", pid_namespace="other"), True),
        (replace(own, host="elsewhere", boot_id="other", pid_namespace="other", pid=2**22 + 1), False),
        (replace(own, pid_namespace="a container's", pid=2**22 + 1), False),
        (own, False),
    ):
        hold = Hold(other.name + "x", "a restore", 5, process=other)
        assert (stale_because(tmp_path, "app", hold) is not None) is is_stale, other


def test_should_tell_apart_processes_of_two_containers_that_have_the_same_host_name_and_pid(tmp_path):
    own = HoldingProcess.own()
    twin = replace(own, pid_namespace="a container's")
    take_hold(tmp_path, "app", Hold(twin.name, "a restore", 5, process=twin))
    with pytest.raises(TaskLocked, match="a restore"), holding(tmp_path, "app", print):
        pytest.fail("two at a time")
    assert not release_hold(tmp_path, "app", own.name, own)
    assert read_hold(tmp_path, "app").process == twin
    assert release_hold(tmp_path, "app", twin.name, twin)
    take_hold(tmp_path, "app", Hold(own.name, "a restore", 5, process=own))
    with holding(tmp_path, "app", print):
        pass
    assert release_hold(tmp_path, "app", own.name, own)


def test_should_run_under_the_hold_of_the_case_that_it_acts_for(tmp_path):
    take_hold(tmp_path, "app", Hold(CASE, "why", 5, (0, 1)))
    before = read_hold(tmp_path, "app")
    with acting_for(CASE), holding(tmp_path, "app", print):
        assert read_hold(tmp_path, "app") == before
    assert read_hold(tmp_path, "app") == before
    with pytest.raises(TaskLocked, match=CASE), holding(tmp_path, "app", print):
        pytest.fail("that is the case's")
    other = CASE.replace("2026", "2027")
    with pytest.raises(TaskLocked, match=CASE), acting_for(other), holding(tmp_path, "app", print):
        pytest.fail("that is another case's")
    # A case whose hold somebody has removed holds for as long as it works.
    release_hold(tmp_path, "app", CASE)
    with acting_for(CASE), holding(tmp_path, "app", print):
        assert read_hold(tmp_path, "app").by == CASE
    assert read_hold(tmp_path, "app") is None


def test_should_take_over_from_a_case_only_when_it_is_over(tmp_path):
    hold = take_hold(tmp_path, "app", Hold(CASE, "why", int(time.time() * 1000)))
    assert stale_because(tmp_path, "app", hold) is None, "a case that nobody has written a report of may go on"
    report = case_path(tmp_path, "app", CASE) / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text("{}")
    os.utime(report, (hold.since_ms / 1000 - 60,) * 2)
    assert stale_because(tmp_path, "app", hold) is None, "the report of a try before this hold"
    os.utime(report, (hold.since_ms / 1000 + 60,) * 2)
    assert stale_because(tmp_path, "app", hold) == f"case {CASE} is over"
    with holding(tmp_path, "app", print):
        assert read_hold(tmp_path, "app").by != CASE


def test_should_treat_an_unreadable_file_as_a_live_hold(tmp_path):
    path = hold_path(tmp_path, "app")
    path.parent.mkdir()
    for text in ("{half", "{}", json.dumps({"by": "x", "reason": "", "since_ms": 1, "instances": [], "process": {}})):
        path.write_text(text)
        with pytest.raises(TaskLocked, match=r"remove .*app\.hold\.json"), holding(tmp_path, "app", print):
            pytest.fail("somebody meant to hold")


def test_should_name_a_user_that_the_system_does_not_know_by_its_number(tmp_path, monkeypatch):
    # A container may run with any number, as OpenShift's do.
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    with holding(tmp_path, "app", print):
        held = read_hold(tmp_path, "app")
    assert held.process.user == "uid-3999999"


def test_should_admit_one_holder_at_a_time(tmp_path):
    seed = random.randrange(10**6)
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTENDS, str(tmp_path), str(seed + n)],
            env={**os.environ, "PYTHONPATH": "include"},
        )
        for n in range(3)
    ]
    try:
        assert [contender.wait(300) for contender in contenders] == [0, 0, 0], seed
    finally:
        for contender in contenders:
            contender.kill()
            contender.wait()
    assert read_hold(tmp_path, "app") is None
