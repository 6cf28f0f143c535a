"""Loading of a changelog by a separate process: the same state, the same errors, and nothing left over."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.integration.restore.test_restore_run import Counted, context_of, counts_of, restore
from tests.support.counting import CountingApp

from tidemark.errors import OutcomeUnknown, StartRefused
from tidemark.folder_lock import is_locked
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore import loader_pool
from tidemark.restore.loader_pool import load_apart
from tidemark.restore.restorer import Restorer, RestoreSuspended, changelog_segments
from tidemark.restore.table_reader import NoTableReader
from tidemark.restore.task_opener import restore_job
from tidemark.topology.plan import StoreKind

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
_CALLER = """
import pickle, sys
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.loader_pool import load_apart
from tidemark.restore.restorer import Restorer
from tidemark.restore.table_reader import NoTableReader
from tidemark.folder_lock import FolderLock
client, job, building = pickle.load(sys.stdin.buffer)
with FolderLock(building.parent):
    restorer = Restorer(client, 60, LoggingRestoreListener(), lambda _: None, NoTableReader())
    load_apart(restorer, job, building, 1 << 20, lambda: True)
"""


@pytest.fixture
def app(settings, admin, unique):
    """Two partitions, everything committed, nothing running, and every changelog long enough for a process."""
    made = CountingApp(settings.model_copy(update={"restore_process_offsets": 1}), admin, unique("counting"))
    made.feed(2000)
    made.run()
    return made


@pytest.fixture
def job(app):
    """What must be loaded of partition 0."""
    context, task = context_of(app), TaskId(0, 0)
    found = context.evidence.read()[task]
    return restore_job(
        context.plan,
        found.facts,
        context.evidence.buildable(task)["n"],
        context.evidence.candidates(found, None).committed,
        0,
    )


@pytest.fixture
def restorer(app):
    return Restorer(context_of(app).clients.client_config, 10, Counted(), lambda _point: None, NoTableReader())


def children():
    """The processes that load."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "tidemark.restore.loader_process" in child.cmdline():
                found.append(child)
    return found


def endless(job):
    """The same job with an end that the changelog does not have."""
    return replace(job, target=replace(job.target, changelog_offset=job.target.changelog_offset + 1000))


@pytest.fixture
def counted_processes(monkeypatch):
    """The commands of all processes that were started to load."""
    started = []

    class Counting(subprocess.Popen):
        def __init__(self, command, *args, **kwargs):
            started.append(command)
            super().__init__(command, *args, **kwargs)

    monkeypatch.setattr("tidemark.restore.loader_pool.subprocess.Popen", Counting)
    return started


def test_should_restore_a_lost_state_at_a_start(app, counted_processes):
    shutil.rmtree(app.settings.state_dir)
    app.feed(500)
    app.run()
    assert counts_of(app) == app.expected
    assert len(counted_processes) == 2


def test_should_restore_verify_and_report_every_record(app, counted_processes):
    listener = Counted()
    restore(app, SourceOfState.CHANGELOG, listener=listener)
    assert counts_of(app) == app.expected
    assert listener.records >= len(app.expected)
    assert len(counted_processes) == 2


def test_should_reuse_a_loader_process_for_the_waiting_load(app, counted_processes, monkeypatch):
    monkeypatch.setattr(loader_pool, "_loaders", loader_pool._Loaders(1))
    restore(app, SourceOfState.CHANGELOG)
    assert counts_of(app) == app.expected
    assert len(counted_processes) == 1
    assert children() == []


def test_should_start_another_loader_process_when_one_has_failed(app, job, restorer, monkeypatch, tmp_path):
    monkeypatch.setattr(loader_pool, "_loaders", loader_pool._Loaders(1))
    with pytest.raises(StartRefused):
        load_apart(restorer, replace(job, value_bytes=3), tmp_path / "n", 1 << 20, lambda: True)
    load_apart(restorer, job, tmp_path / "m", 1 << 20, lambda: True)
    assert (tmp_path / "m" / "CURRENT").exists()


def test_should_not_wait_for_a_process_when_the_task_is_taken_away(job, restorer, monkeypatch, tmp_path):
    monkeypatch.setattr(loader_pool, "_loaders", loader_pool._Loaders(0))
    with pytest.raises(RestoreSuspended, match="before its first record"):
        load_apart(restorer, job, tmp_path / "n", 1 << 20, lambda: False)


def test_should_use_a_thread_and_no_process_for_a_short_changelog(app, counted_processes):
    app.settings = app.settings.model_copy(update={"restore_process_offsets": 1_000_000})
    restore(app, SourceOfState.CHANGELOG)
    assert counted_processes == []


def test_should_raise_what_went_wrong_in_the_process(job, restorer, tmp_path):
    with pytest.raises(StartRefused, match="holds values of"):
        load_apart(restorer, replace(job, value_bytes=3), tmp_path / "n", 1 << 20, lambda: True)
    assert children() == []


@pytest.mark.parametrize(
    ("kind", "lengths", "said"),
    [
        (StoreKind.WINDOW, (9, 7), "keys are too short to belong to a window store, the shortest is 0x" + "6b" * 7),
        (StoreKind.WINDOW, (9, 4, 4), "the shortest is 0x6b6b6b6b"),
        (StoreKind.SESSION, (17, 15), "keys are too short to belong to a session store"),
        (StoreKind.WINDOW, (8, 9), None),
        (StoreKind.SESSION, (16, 17), None),
    ],
)
def test_should_refuse_keys_that_do_not_fit_the_window_store_and_name_the_repair(job, kind, lengths, said):
    windowed = replace(job, spec=replace(job.spec, kind=kind, segment_ms=1000, retention_ms=5000))
    keys = [b"k" * length for length in lengths]
    if said is None:
        assert len(changelog_segments(windowed, keys)) == len(keys)
        return
    with pytest.raises(StartRefused, match=said) as refused:
        changelog_segments(windowed, keys)
    assert f"`tidemark repair run NAME --store {job.spec.name}`" in str(refused.value)


def test_should_report_that_the_loader_process_was_killed(job, restorer, tmp_path):
    def kill_it():
        for child in children():
            child.kill()
        return True

    with pytest.raises(OutcomeUnknown, match="ended with -9; the next start loads it again"):
        load_apart(restorer, endless(job), tmp_path / "n", 1 << 20, kill_it)


def test_should_end_the_process_when_the_task_is_taken_away(job, restorer, tmp_path):
    """The task is revoked after the first record, when the process reports progress for the first time."""
    suspended = []
    restorer.listener.on_restore_suspended = suspended.append
    summary = []
    restorer.listener.on_restore_start = summary.append
    with pytest.raises(RestoreSuspended, match=r"changelog\[0\]"):
        load_apart(restorer, endless(job), tmp_path / "n", 1 << 20, lambda: not summary)
    assert len(suspended) == 1
    assert children() == []


def test_should_hold_the_locks_of_a_killed_caller_until_the_loader_has_ended_too(app, job, tmp_path):
    folder = tmp_path / "task"
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALLER],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "include")},
    )
    caller.stdin.write(pickle.dumps((context_of(app).clients.client_config, endless(job), folder / "n")))
    caller.stdin.close()
    assert wait_until((folder / "n" / "CURRENT").exists, 90)
    (child,) = psutil.Process(caller.pid).children()
    # It stands still, as it does in a long call: the caller is dead, and it is not.
    child.suspend()
    caller.kill()
    assert caller.wait(60) == -signal.SIGKILL
    assert child.is_running()
    assert is_locked(folder)
    child.resume()
    assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60)
    # What a dying process has open is closed last.
    assert wait_until(lambda: not is_locked(folder), 60)


def test_should_begin_again_after_a_kill_during_the_load(app):
    """The folder that the killed process left does not count as a store."""
    shutil.rmtree(app.settings.state_dir)
    killed = []

    def kill_once(point):
        if point == "restore-whole" and not killed:
            killed.extend(children())
            for child in killed:
                child.kill()

    # One that had told all before it was killed is done.
    with contextlib.suppress(OutcomeUnknown):
        app.run(probe=kill_once)
    assert killed
    app.run()
    assert counts_of(app) == app.expected
