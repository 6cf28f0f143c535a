"""Folders of tasks: `<state_dir>/<holder>/<application_id>/<subtopology>_<partition>/`.

A holder is an instance's number or `standby-<n>`. A folder belongs to one process. There is one `.lock` in a holder's folder of
the application, for all of its tasks, and one in each task's folder. The locks are those of the kernel (`flock`), so a dead
process holds none (see invariant: one process per state folder).
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
from pathlib import Path

from tidemark.errors import PreflightFailed, TaskLocked
from tidemark.files import as_full_disk
from tidemark.names import TaskId

log = logging.getLogger(__name__)

CHECKPOINT_FILE = ".checkpoint"
LOCK_FILE = ".lock"
STORES_FOLDER = "rocksdb"
STANDBY_PREFIX = "standby-"


_held: dict[int, Path] = {}


def locks_around(path: Path) -> list[int]:
    """Return the descriptors of this process's locks on folders that contain `path`. A child that inherits one holds it."""
    return [descriptor for descriptor, folder in list(_held.items()) if path.is_relative_to(folder)]


class FolderLock:
    """An exclusive lock on a folder, held until `release`, or until this process and those that inherited it have ended."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise `TaskLocked`, which names the holder. Never blocks.

        Raises `StoreFailed` if the disk is full, `PreflightFailed` if the folder cannot be written for another reason.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if full := as_full_disk(error):
                raise full from error
            raise PreflightFailed(
                f"state folder {folder} cannot be written ({error.strerror}): give this user write permission, "
                "or set TIDEMARK_STATE_DIR to another folder"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise TaskLocked(
                f"{folder} is locked by process {holder}: stop it, or start this one with another number "
                "(--instance, --number)"
            ) from None
        _held[self._descriptor] = folder
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            self.release()
            error.filename = str(folder / LOCK_FILE)
            if full := as_full_disk(error):
                raise full from error
            raise

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._descriptor >= 0:
            del _held[self._descriptor]
            os.close(self._descriptor)
            self._descriptor = -1


def folder_of(base: Path, task: TaskId, store: str) -> Path:
    """Return the folder of a store within a holder's folder of the application, or a folder of the same structure."""
    return base / str(task) / STORES_FOLDER / store


def is_locked(folder: Path) -> bool:
    """Return whether a live process holds the lock on a folder. Takes no lasting lock and never blocks."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class TaskDirectory:
    """One task's folder, locked while this object is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FolderLock(folder)

    @property
    def checkpoint_path(self) -> Path:
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
        """Take the process lock; `holder` is an instance's number or `standby-<n>`. Raises `TaskLocked`, `PreflightFailed`."""
        self._state_dir = state_dir
        self._application_id = application_id
        self.folder = state_dir / str(holder) / application_id
        self._adopting = threading.Lock()
        self._lock = FolderLock(self.folder)

    def task_ids(self) -> list[TaskId]:
        """Return the tasks that have a folder here."""
        return _task_ids(self.folder)

    def open_task(self, task: TaskId, *, adopts: bool = True) -> TaskDirectory:
        """Lock a task's folder. With `adopts`, the folder of a dead peer is taken over if there is none here yet."""
        folder = self.folder / str(task)
        if adopts and not (folder / STORES_FOLDER).exists():
            # One at a time: if another thread of this process holds a peer's lock, that does not mean that the peer is alive.
            with self._adopting:
                self._adopt(task, folder)
        return TaskDirectory(folder)

    def _adopt(self, task: TaskId, folder: Path) -> None:
        """Lock the peer, then rename: a peer's folder is taken over only while its process lock is free."""
        for peer in self._state_dir.glob(f"*/{self._application_id}/{task}/{STORES_FOLDER}"):
            peer_root = peer.parent.parent
            if peer_root == self.folder:
                continue
            try:
                lock = FolderLock(peer_root)
            except TaskLocked:
                continue
            with lock:
                shutil.rmtree(folder, ignore_errors=True)
                peer.parent.rename(folder)
            log.info("task %s: took the state over from %s", task, peer_root)
            return

    def close(self) -> None:
        """Release the process lock. May be called twice."""
        self._lock.release()


def _task_ids(folder: Path) -> list[TaskId]:
    found: list[TaskId] = []
    for child in folder.iterdir():
        try:
            found.append(TaskId.parse(child.name))
        except ValueError:
            continue
    return sorted(found)
