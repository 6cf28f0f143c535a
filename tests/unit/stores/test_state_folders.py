"""Folders, locks, checkpoint files."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tidemark.errors import PreflightFailed, TaskCorrupted, TaskLocked
from tidemark.folder_lock import LOCK_FILE, FolderLock, is_locked
from tidemark.names import TaskId, TopicPartition
from tidemark.processes import wait_until
from tidemark.stores import directory
from tidemark.stores.checkpoint_file import read_checkpoint, write_checkpoint
from tidemark.stores.directory import STORES_FOLDER, FolderRank, FolderState, InstanceDirectory

TASK = TaskId(0, 3)
_HOLD = """
import sys
from pathlib import Path
from tidemark.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held_elsewhere(tmp_path):
    """A folder whose lock another live process holds."""
    folder = tmp_path / "held"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PYTHONPATH": "include"},
    )  # fmt: skip
    assert holder.stdout.readline() == b"held\n"
    yield folder, holder
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()


class MovingFolder:
    """The first move of a folder begins, and does not end before it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()


@pytest.fixture
def moving_folder(monkeypatch):
    """The first `Path.rename` of the test."""
    move, real = MovingFolder(), Path.rename

    def rename(self, target):
        if not move.begun.is_set():
            move.begun.set()
            assert move.may_end.wait(60)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    return move


def test_should_refuse_a_folder_that_a_live_process_holds_and_name_it(held_elsewhere):
    folder, holder = held_elsewhere
    with pytest.raises(TaskLocked, match=rf"locked by process {holder.pid}.*--instance"):
        FolderLock(folder)


def test_should_take_a_folder_whose_holder_was_killed(held_elsewhere):
    folder, holder = held_elsewhere
    holder.kill()
    holder.wait()
    FolderLock(folder).release()


_LEAVE = """
import os, subprocess, sys
from pathlib import Path
from tidemark.folder_lock import FolderLock
from tidemark.stores.directory import locks_around
folder = Path(sys.argv[1])
lock = FolderLock(folder)
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, pass_fds=locks_around(folder))
print(child.pid, flush=True)
os._exit(1)
"""


def test_should_wait_for_the_processes_of_an_instance_that_was_killed(tmp_path, monkeypatch):
    """One that loads a state holds the lock until it notices."""
    monkeypatch.setattr(directory, "_LOCK_WAIT_S", 60)
    folder = tmp_path / "0" / "app"
    left = subprocess.run([sys.executable, "-c", _LEAVE, folder], stdout=subprocess.PIPE, env={"PYTHONPATH": "include"})
    child = psutil.Process(int(left.stdout))
    try:
        assert is_locked(folder)
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(InstanceDirectory, tmp_path, "app", 0)
            assert not wait_until(opened.done, 0.3)
            child.kill()
            opened.result(60).close()
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    assert not is_locked(folder)


def test_should_wait_while_an_heir_takes_a_task_out_of_the_folder(tmp_path, monkeypatch, moving_folder):
    """The instance that returns would end for good if it took the heir for a second copy of itself."""
    monkeypatch.setattr(directory, "_LOCK_WAIT_S", 60)
    (tmp_path / "2" / "app" / str(TASK) / STORES_FOLDER).mkdir(parents=True)
    heir = InstanceDirectory(tmp_path, "app", 1)
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(heir.open_task, TASK)
        assert moving_folder.begun.wait(60)
        returned = pool.submit(InstanceDirectory, tmp_path, "app", 2)
        assert not wait_until(returned.done, 0.3)
        moving_folder.may_end.set()
        for opened in (taken.result(60), returned.result(60), heir):
            opened.close()


def test_should_wait_for_one_that_asks_whether_the_task_is_open(tmp_path, monkeypatch):
    """The Streams page and `tidemark stores` ask, and an instance that starts meanwhile would end for good."""
    monkeypatch.setattr(directory, "_TASK_LOCK_WAIT_S", 60)
    instance = InstanceDirectory(tmp_path, "app", 1)
    lock = instance.folder / str(TASK) / LOCK_FILE
    lock.parent.mkdir()
    lock.touch()
    with ThreadPoolExecutor(1) as pool:
        with lock.open() as asking:
            fcntl.flock(asking, fcntl.LOCK_SH)
            opened = pool.submit(instance.open_task, TASK)
            assert not wait_until(opened.done, 0.3)
        opened.result(60).close()
    instance.close()


def test_should_arrange_folders_by_instance_application_and_task(tmp_path):
    instance = InstanceDirectory(tmp_path, "app", 1)
    task = instance.open_task(TASK)
    assert task.folder == tmp_path / "1" / "app" / "0_3"
    assert instance.task_ids() == [TASK]
    task.close()
    instance.close()


def test_should_not_open_one_instances_folder_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_LOCK_WAIT_S", 0.1)
    first = InstanceDirectory(tmp_path, "app", 0)
    with pytest.raises(TaskLocked):
        InstanceDirectory(tmp_path, "app", 0)
    InstanceDirectory(tmp_path, "app", 1).close()
    first.close()
    InstanceDirectory(tmp_path, "app", 0).close()


def _with_state(tmp_path, number):
    peer = InstanceDirectory(tmp_path, "app", number)
    task = peer.open_task(TASK)
    (task.folder / STORES_FOLDER / "counts").mkdir(parents=True)
    task.close()
    return peer


def test_should_take_a_dead_peers_task_over_by_renaming_it(tmp_path):
    _with_state(tmp_path, 0).close()
    heir = InstanceDirectory(tmp_path, "app", 1)
    task = heir.open_task(TASK)
    assert (task.folder / STORES_FOLDER / "counts").is_dir()
    assert not (tmp_path / "0" / "app" / "0_3").exists()


def test_should_not_take_over_a_live_peers_task(tmp_path):
    peer = _with_state(tmp_path, 0)
    heir = InstanceDirectory(tmp_path, "app", 1)
    task = heir.open_task(TASK)
    assert not (task.folder / STORES_FOLDER).exists()
    assert (tmp_path / "0" / "app" / "0_3" / STORES_FOLDER / "counts").is_dir()
    peer.close()


def test_should_say_which_folder_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PreflightFailed, match="TIDEMARK_STATE_DIR"):
        FolderLock(tmp_path / "file" / "state")


def test_should_write_a_checkpoint_that_people_and_the_code_can_read(tmp_path):
    offsets = {TopicPartition("app-counts-changelog", 3): 42, TopicPartition("app-a-changelog", 3): 7}
    write_checkpoint(tmp_path / ".checkpoint", offsets)
    assert (tmp_path / ".checkpoint").read_text() == "0\n2\napp-a-changelog 3 7\napp-counts-changelog 3 42\n"
    assert read_checkpoint(tmp_path / ".checkpoint") == offsets
    assert read_checkpoint(tmp_path / "nothing") == {}


@pytest.mark.parametrize("text", ["", "0\n2\na 3 7\n", "1\n1\na 3 7\n", "0\n1\na 3\n", "0\n1\na 3 x\n"])
def test_should_refuse_an_inconsistent_checkpoint(tmp_path, text):
    (tmp_path / ".checkpoint").write_text(text)
    with pytest.raises(TaskCorrupted, match=r"\.checkpoint"):
        read_checkpoint(tmp_path / ".checkpoint")


def test_should_take_over_all_tasks_of_a_dead_peer_when_they_are_opened_in_parallel(tmp_path):
    """A lock on the peer's folder that another thread of this instance holds does not mean that the peer is alive."""
    tasks = [TaskId(0, number) for number in range(40)]
    for task in tasks:
        (tmp_path / "1" / "app" / str(task) / "rocksdb").mkdir(parents=True)
    directory = InstanceDirectory(tmp_path, "app", 0)
    with ThreadPoolExecutor(8) as pool:
        for opened in pool.map(directory.open_task, tasks):
            opened.close()
    directory.close()
    assert [task for task in tasks if (tmp_path / "1" / "app" / str(task)).exists()] == []


def test_two_heirs_should_each_take_over_their_tasks_of_one_dead_peer(tmp_path, moving_folder):
    """While the first one moves a folder, it holds the peer's lock: the second one must not take the peer for alive."""
    other = TaskId(0, 4)
    for task in (TASK, other):
        (tmp_path / "2" / "app" / str(task) / STORES_FOLDER).mkdir(parents=True)
    heirs = [InstanceDirectory(tmp_path, "app", number) for number in (1, 3)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(heirs[0].open_task, TASK)
        assert moving_folder.begun.wait(60)
        second = pool.submit(heirs[1].open_task, other)
        # Without the mend it is done at once, and has nothing.
        with pytest.raises(TimeoutError):
            second.result(0.3)
        moving_folder.may_end.set()
        opened = [first.result(60), second.result(60)]
    assert [(task.folder / STORES_FOLDER).is_dir() for task in opened] == [True, True]
    for each in (*opened, *heirs):
        each.close()


def test_an_heir_should_go_on_when_another_one_has_moved_the_folder_before_it_had_the_lock(tmp_path, monkeypatch):
    peer = tmp_path / "2" / "app" / str(TASK) / STORES_FOLDER
    peer.mkdir(parents=True)
    real = FolderLock.__init__

    def lock(self, folder):
        real(self, folder)
        if folder == peer.parent.parent:
            shutil.rmtree(peer.parent, ignore_errors=True)

    heir = InstanceDirectory(tmp_path, "app", 1)
    monkeypatch.setattr(FolderLock, "__init__", lock)
    task = heir.open_task(TASK)
    assert not (task.folder / STORES_FOLDER).exists()
    task.close()
    heir.close()


BEHIND_10, BEHIND_20, LEVEL, UNKNOWN = (
    FolderRank(state, 0, offsets)
    for state, offsets in (
        (FolderState.BEHIND, 10), (FolderState.BEHIND, 20), (FolderState.LEVEL, 10), (FolderState.UNKNOWN, 99),
    )
)  # fmt: skip
UNLOGGED_10 = BEHIND_10._replace(unlogged_stores=1)


@pytest.mark.parametrize(
    ("ranks", "taken"),
    [
        ({"0": BEHIND_10, "2": BEHIND_20}, "2"),
        ({"0": BEHIND_20, "2": BEHIND_10}, "0"),
        ({"0": BEHIND_20, "2": LEVEL}, "2"),
        ({"0": UNKNOWN, "2": BEHIND_10}, "2"),
        # Of two folders of one rank, only an instance's has stores without a changelog.
        ({"standby-0": BEHIND_10, "0": BEHIND_10, "standby-1": BEHIND_10}, "0"),
        ({"standby-0": BEHIND_20, "0": BEHIND_10}, "standby-0"),
        ({"standby-0": BEHIND_20, "0": UNLOGGED_10}, "0"),
        ({"0": UNLOGGED_10, "2": LEVEL}, "2"),
        # The own folder is kept unless nothing is in it that the other one lacks.
        ({"1": BEHIND_10, "0": BEHIND_20}, "1"),
        ({"1": BEHIND_10, "0": LEVEL}, "0"),
        ({"1": BEHIND_10, "0": UNKNOWN, "2": LEVEL}, "2"),
        ({"1": UNKNOWN, "0": LEVEL}, "1"),
        ({"1": LEVEL, "0": LEVEL}, "1"),
    ],
)
def test_should_take_the_best_folder_over(tmp_path, ranks, taken):
    for holder in ranks:
        stores = tmp_path / holder / "app" / str(TASK) / STORES_FOLDER
        stores.mkdir(parents=True)
        (stores / holder).touch()
    heir = InstanceDirectory(tmp_path, "app", 1)
    task = heir.open_task(TASK, rank=lambda folder: ranks[folder.parents[1].name])
    assert [file.name for file in task.store_path("any").parent.iterdir()] == [taken]
    assert heir.task_ids() == [TASK]
    left = {found.parents[2].name for found in tmp_path.glob(f"*/app/{TASK}/{STORES_FOLDER}")}
    assert left == {*ranks, "1"} - {taken} | {"1"}
    assert sorted(child.name for child in heir.folder.iterdir()) == [".lock", str(TASK)]
    task.close()
    heir.close()


def test_should_start_beside_a_dead_peers_folder_that_cannot_be_locked(tmp_path, caplog):
    for holder in ("0", "2"):
        (tmp_path / holder / "app" / str(TASK) / STORES_FOLDER / holder).mkdir(parents=True)
    (tmp_path / "0" / "app" / LOCK_FILE).mkdir()
    heir = InstanceDirectory(tmp_path, "app", 1)
    task = heir.open_task(TASK)
    assert task.store_path("2").is_dir()
    assert f"task {TASK}: the state in {tmp_path}/0/app/{TASK} cannot be taken over: state folder" in caplog.text
    task.close()
    heir.close()


def test_should_not_replace_a_folder_that_is_open(tmp_path):
    """Its stores would be another folder's from one moment to the next."""
    heir = InstanceDirectory(tmp_path, "app", 1)
    task = heir.open_task(TASK)
    (task.folder / STORES_FOLDER / "own").mkdir(parents=True)
    (tmp_path / "0" / "app" / str(TASK) / STORES_FOLDER).mkdir(parents=True)
    with pytest.raises(TaskLocked):
        heir.open_task(TASK, rank=lambda folder: LEVEL if "0" in folder.parts else BEHIND_10)
    assert (task.folder / STORES_FOLDER / "own").is_dir()
    task.close()
    heir.close()
