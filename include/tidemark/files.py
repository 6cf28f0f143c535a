"""Files that others read while they are written anew, or after a crash in the middle of that; who may read them at all."""

from __future__ import annotations

import os
from pathlib import Path


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
