"""Temporary files of an instance, a job or a command and of its JVM, in `<state_dir>/.tmp/<name>/<id>/`.

A JVM that is killed leaves its temporary files behind. Therefore each process locks a folder of its own for them. The process
that started it removes the folder when it has ended; if that one was killed, the next process of the same name does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from tidemark.folder_lock import LOCK_FILE, FolderLock, is_locked

TEMPORARY_FOLDER = ".tmp"
# Set below spark-submit. The JVM runs already then, and has the environment of the process that called spark-submit.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def temporary_folders(state_dir: Path, name: str) -> Path:
    """Return the folder in which one instance or job creates a temporary folder at each launch."""
    return state_dir / TEMPORARY_FOLDER / name


def application_of(name: str) -> str:
    """Return the application whose instance or job has a name: `<application_id>-<number>`, `<application_id>-audit`."""
    return name.rpartition("-")[0]


def abandoned_folders(folders: Path) -> list[Path]:
    """Return the temporary folders in `folders` whose processes have all ended.

    While `folders` is not locked, that may also be a folder that a process has just made and is about to lock.
    """
    return sorted(folder for folder in folders.glob("*") if folder.is_dir() and not is_locked(folder))


def use_temporary_folder(folders: Path) -> FolderLock | None:
    """Create and lock a folder in `folders`; Python, Spark and JVMs that start from now on put temporary files there.

    It belongs to this process and to those that inherit the lock. Folders whose processes have all ended are removed. Whoever
    waits for the end of this process and its JVM calls `remove_abandoned`. If `SPARK_LOCAL_DIRS` is set, it is kept, as an
    operator has chosen where Spark spills. Returns None below spark-submit, whose caller has done this. Raises what
    `FolderLock` raises, and `OSError`.
    """
    if _SUBMITTED in os.environ:
        return None
    lock = lock_new_folder(folders, uuid.uuid4().hex)
    folder = str(lock.folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ.setdefault("SPARK_LOCAL_DIRS", folder)
    options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), f"-Djava.io.tmpdir={shlex.quote(folder)}"]
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options).strip()
    return lock


@contextlib.contextmanager
def temporary_folder(state_dir: Path, name: str) -> Iterator[Path]:
    """Create and lock a folder of this process in `temporary_folders(state_dir, name)`, and remove it after the block.

    If this process is killed, `tidemark status` lists the folder. Raises what `lock_new_folder` raises.
    """
    with lock_new_folder(temporary_folders(state_dir, name), uuid.uuid4().hex) as lock:
        try:
            yield lock.folder
        finally:
            shutil.rmtree(lock.folder, ignore_errors=True)


def remove_abandoned(folders: Path) -> None:
    """Remove the temporary folders in `folders` whose processes have all ended.

    What the disk refuses to remove is left to the next launch. Blocks while another process creates or removes a folder here.
    """
    with contextlib.suppress(OSError), _only_here(folders):
        _remove_abandoned(folders)


def lock_new_folder(folders: Path, name: str) -> FolderLock:
    """Create a folder in `folders` and lock it. Folders there whose processes have all ended are removed.

    Blocks while another process creates or removes a folder here. Raises what `FolderLock` raises, and `OSError`.
    """
    folders.mkdir(parents=True, exist_ok=True)
    with _only_here(folders):
        _remove_abandoned(folders)
        return FolderLock(folders / name)


@contextlib.contextmanager
def _only_here(folders: Path) -> Iterator[None]:
    """Let only one process at a time create and remove folders here: one that exists and is not locked is abandoned."""
    with (folders / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_abandoned(folders: Path) -> None:
    for folder in abandoned_folders(folders):
        shutil.rmtree(folder, ignore_errors=True)
