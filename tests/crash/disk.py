"""A disk of one's own that can be full: a tmpfs, whose size is changed while it is in use. Takes root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE_BYTES = 4 << 30
_PAGE_BYTES = 4096


def may_mount() -> bool:
    """Whether this user may."""
    return os.geteuid() == 0


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A disk at `folder` until the end of the block, whatever happens in it."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(folder))
    try:
        yield
    finally:
        # Lazily: what a killed process had open must not keep it.
        _run("umount", "--lazy", str(folder))


def fill(folder: Path, left_bytes: int = 0) -> None:
    """From now on there are `left_bytes` of room, rounded down to pages."""
    found = os.statvfs(folder)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    _resize(folder, used + left_bytes // _PAGE_BYTES * _PAGE_BYTES)


def free(folder: Path) -> None:
    """There is room again."""
    _resize(folder, _SIZE_BYTES)


def _resize(folder: Path, size_bytes: int) -> None:
    _run("mount", "-o", f"remount,size={max(size_bytes, _PAGE_BYTES)}", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
