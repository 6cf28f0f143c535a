"""Replacing files that other processes read, also across a crash; permissions of new files; errors of a full disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from tidemark.errors import StoreFailed, TidemarkError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_OF_THE_PATH = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG,
)  # fmt: skip


def as_full_disk(error: OSError) -> StoreFailed | None:
    """Return the error to raise instead if a file could not be written because the disk is full; None for other errors."""
    if error.errno not in NO_ROOM:
        return None
    return StoreFailed(f"{error.filename or 'a file'} cannot be written ({os.strerror(error.errno)}): free its disk")


def as_file_error(error: OSError) -> TidemarkError | None:
    """Return the error with which a program ends if a file cannot be used; None for an error that no other path would mend."""
    full = as_full_disk(error)
    if full is not None or error.filename is None or error.errno not in _OF_THE_PATH:
        return full
    return TidemarkError(f"{error.filename} cannot be used ({error.strerror}): correct the path or its permissions")


def keep_files_private() -> None:
    """Make all files that this process and its child processes create readable only by their user.

    State and reports contain personal data. Every program's entry point calls this first.
    """
    os.umask(0o077)


def replace_file(path: Path, text: str, *, synced: bool, private: bool = False) -> None:
    """Replace a file in one step: a reader finds the old text or the new one. The folder must exist. Raises `OSError`.

    With `synced` this also holds after the machine has crashed, which costs a disk write. With `private` only the owner can
    read the file, whatever the umask of this process is.
    """
    # Named after the thread, whose number no other thread or process of this machine or container has now.
    temporary = path.with_name(f"{path.name}.{threading.get_native_id()}.tmp")
    try:
        if private:
            # A file that a killed thread with this number left may have another mode.
            temporary.unlink(missing_ok=True)
        with open(temporary, "w", opener=_private_file if private else None) as file:
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _private_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
