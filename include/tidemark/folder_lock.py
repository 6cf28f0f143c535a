"""The lock of a folder, held by one process, and short locks for which others wait."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.atomic_file import as_full_disk
from tidemark.errors import PreflightFailed, TaskLocked

LOCK_FILE = ".lock"
_held: dict[int, Path] = {}


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


@contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """Wait for the lock of a file, which is created if it is missing, and keep it during the block. Yields its descriptor.

    Other threads wait as well as other processes, and a child process that inherits the descriptor keeps the lock. Blocks.
    Raises `OSError`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


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
