"""Folders of tasks: `<state_dir>/<holder>/<application_id>/<subtopology>_<partition>/`.

A holder is an instance's number or `standby-<n>`. A folder belongs to one process. There is one `.lock` in a holder's folder of
the application, for all of its tasks, and one in each task's folder. The locks are those of the kernel (`flock`), so a dead
process holds none (see invariant: one process per state folder).
"""

from __future__ import annotations

import logging
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tidemark.atomic_file import as_full_disk
from tidemark.errors import PreflightFailed, TaskLocked
from tidemark.folder_lock import FolderLock, _held, is_locked, locked_file
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.temporary_folder import temporary_folders

log = logging.getLogger(__name__)

CHECKPOINT_FILE = ".checkpoint"
STORES_FOLDER = "rocksdb"
CORRUPT_STORE = re.compile(r"(?P<store>.+)\.corrupt-\d+")
RESTORING_STORE = re.compile(r"(?P<store>.+)\.restoring")
"""Names of folders next to a task's stores: a store that could not be read and was moved aside, and one that is half built."""
_LOCK_WAIT_S = 10.0
_TASK_LOCK_WAIT_S = 1.0
STANDBY_PREFIX = "standby-"


class FolderState(IntEnum):
    """The state of a task's folder, compared with the last commit. A start prefers the folder with the greater value."""

    UNKNOWN = 0
    BEHIND = 1
    LEVEL = 2


class FolderRank(NamedTuple):
    """The rank of a task's folder. Of several folders of one task, a start prefers the one with the greatest rank.

    `unlogged_stores` is the number of its stores without a changelog that the start can continue with, as far as can be
    judged: nothing else restores them. `changelog_offsets` is the sum over its stores.
    """

    state: FolderState
    unlogged_stores: int
    changelog_offsets: int


UNKNOWN_RANK = FolderRank(FolderState.UNKNOWN, 0, 0)


def unranked(_folder: Path) -> FolderRank:
    """Return the rank of a folder that is not judged."""
    return UNKNOWN_RANK


def locks_around(path: Path) -> list[int]:
    """Return the descriptors of this process's locks on folders that contain `path`. A child that inherits one holds it."""
    return [descriptor for descriptor, folder in list(_held.items()) if path.is_relative_to(folder)]


def folder_of(base: Path, task: TaskId, store: str) -> Path:
    """Return the folder of a store within a holder's folder of the application, or a folder of the same structure."""
    return base / str(task) / STORES_FOLDER / store


class TaskDirectory:
    """One task's folder, locked while this object is open."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder. Raises `TaskLocked`, `PreflightFailed`.

        Waits for the lock for up to a second: who only asks whether a task is open has its lock for a moment.
        """
        self.folder = folder
        self._lock = _lock_within(folder, _TASK_LOCK_WAIT_S)

    @property
    def checkpoint_file(self) -> Path:
        return self.folder / CHECKPOINT_FILE

    def store_path(self, store: str) -> Path:
        """Return the folder of one store, which may not exist yet."""
        return self.folder / STORES_FOLDER / store

    def restoring_path(self, store: str) -> Path:
        """Return the emptied folder in which a store is built before it is renamed to `store_path`."""
        path = self.folder / STORES_FOLDER / f"{store}.restoring"
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        """Release the folder. May be called twice."""
        self._lock.release()


class InstanceDirectory:
    """All task folders of one holder of one application, and their lock (see invariant: one process per state folder)."""

    def __init__(self, state_dir: Path, application_id: str, holder: int | str) -> None:
        """Take the process lock; `holder` is an instance's number or `standby-<n>`. Raises `TaskLocked`, `PreflightFailed`.

        Waits for the lock for up to ten seconds: the processes of a holder that was killed end as soon as they notice it, and
        an heir keeps the lock only while it takes a task over.
        """
        self._state_dir = state_dir
        self._application_id = application_id
        self.folder = state_dir / str(holder) / application_id
        self._lock = _lock_within(self.folder, _LOCK_WAIT_S)

    def task_ids(self) -> list[TaskId]:
        """Return the tasks that have a folder here."""
        return _task_ids(self.folder)

    def open_task(
        self, task: TaskId, *, adopts: bool = True, rank: Callable[[Path], FolderRank] = unranked
    ) -> TaskDirectory:
        """Lock a task's folder. With `adopts`, the best folder of a dead peer is taken over if it is better than the own one.

        `rank` judges a folder of the task; its holder's lock is held meanwhile. An own folder is only replaced if it is behind
        the last commit and the peer's is level with it: then nothing is in it that the peer's lacks.
        """
        folder = self.folder / str(task)
        if adopts:
            # An heir holds the lock of a dead peer meanwhile, which another one would take for a sign that the peer is alive.
            try:
                with locked_file(self._state_dir / f".heir-of-{self._application_id}.lock"):
                    self._adopt(task, folder, rank)
            except OSError as error:
                if full := as_full_disk(error):
                    raise full from error
                raise
        return TaskDirectory(folder)

    def _adopt(self, task: TaskId, folder: Path, rank: Callable[[Path], FolderRank]) -> None:
        """Lock the peer, then rename: a peer's folder is taken over only while its process lock is free."""
        for peer in self._dead_peers(task, folder, rank):
            try:
                lock = FolderLock(peer.parent)
            except TaskLocked:
                continue
            with lock:
                if not (peer / STORES_FOLDER).exists():
                    continue  # Another heir has taken it meanwhile.
                # If this process is killed before the end, its next launch removes what is there.
                name = f"{self._application_id}-{self.folder.parent.name}"
                replaced = temporary_folders(self._state_dir, name) / uuid.uuid4().hex
                if folder.exists():
                    replaced.parent.mkdir(parents=True, exist_ok=True)
                    folder.rename(replaced)
                peer.rename(folder)
                shutil.rmtree(replaced, ignore_errors=True)
            log.info("task %s: took the state over from %s", task, peer.parent)
            return

    def _dead_peers(self, task: TaskId, folder: Path, rank: Callable[[Path], FolderRank]) -> list[Path]:
        """Return the task's folders of dead peers that are better than the own `folder`, the best one first."""
        found = self._state_dir.glob(f"*/{self._application_id}/{task}/{STORES_FOLDER}")
        peers = [peer.parent for peer in found if peer.parent != folder and not is_locked(peer.parent.parent)]
        is_held = (folder / STORES_FOLDER).exists()
        if not peers or (is_held and (is_locked(folder) or rank(folder).state is not FolderState.BEHIND)):
            return []
        ranks: dict[Path, FolderRank] = {}
        for peer in peers:
            try:
                with suppress(TaskLocked), FolderLock(peer.parent):
                    ranks[peer] = rank(peer)
            except PreflightFailed as error:
                log.warning("task %s: the state in %s cannot be taken over: %s", task, peer, error)
        better = [peer for peer in ranks if not is_held or ranks[peer].state is FolderState.LEVEL]
        # Copies of standbys have no batch, and no stores without a changelog.
        is_instance = {peer: not peer.parents[1].name.startswith(STANDBY_PREFIX) for peer in better}
        return sorted(better, key=lambda peer: (ranks[peer], is_instance[peer], str(peer)), reverse=True)

    def close(self) -> None:
        """Release the process lock. May be called twice."""
        self._lock.release()


def _lock_within(folder: Path, wait_s: float) -> FolderLock:
    """Take the lock of a folder as soon as it is free. Blocks for up to `wait_s`; then raises `TaskLocked`."""
    taken: list[FolderLock] = []

    def is_taken() -> bool:
        with suppress(TaskLocked):
            taken.append(FolderLock(folder))
        return bool(taken)

    return taken[0] if wait_until(is_taken, wait_s) else FolderLock(folder)


def _task_ids(folder: Path) -> list[TaskId]:
    found: list[TaskId] = []
    for child in folder.iterdir():
        try:
            found.append(TaskId.parse(child.name))
        except ValueError:
            continue
    return sorted(found)
