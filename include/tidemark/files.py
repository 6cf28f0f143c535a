"""Files that others read while they are written anew, or after a crash in the middle of that; who may read them at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tidemark.errors import StoreFailed

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def as_full_disk(error: OSError) -> StoreFailed | None:
    """What to raise instead where a file could not be written for want of room; None for every other error."""
    if error.errno not in NO_ROOM:
        return None
    return StoreFailed(f"{error.filename or 'a file'} cannot be written ({os.strerror(error.errno)}): free its disk")


def keep_files_private() -> None:
    """Make what this process and those it starts create readable by their user alone: state and reports hold personal data.

    Every program's entry point calls it first.
    """
    os.umask(0o077)


def replace_file(path: Path, text: str, *, synced: bool) -> None:
    """Write a file in one piece: a reader finds the old text or the new one. The folder must exist. Raises `OSError`.

    `synced`: also after the machine has crashed, which costs a disk write.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
