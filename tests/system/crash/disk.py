"""A separate disk that can be filled: a tmpfs whose size is changed while it is in use. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE_BYTES = 4 << 30
_PAGE_BYTES = 4096
_TRIES = 100
_HAS_MOUNTS = "TEST_OWN_MOUNTS"


def may_mount() -> bool:
    """Whether this user may."""
    return os.geteuid() == 0


def in_mounts_of_its_own(module: str) -> None:
    """Run this process anew, as `module`, where what is mounted goes with the last of its processes, however they end."""
    if may_mount() and not os.environ.get(_HAS_MOUNTS):
        os.environ[_HAS_MOUNTS] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", module, *sys.argv[1:]])


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
    for _ in range(_TRIES):
        found = os.statvfs(folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        try:
            _resize(folder, used + left_bytes // _PAGE_BYTES * _PAGE_BYTES)
        except OSError as error:  # It was written to meanwhile.
            last = error
        else:
            return
    raise last


def free(folder: Path) -> None:
    """There is room again."""
    _resize(folder, _SIZE_BYTES)


def _resize(folder: Path, size_bytes: int) -> None:
    _run("mount", "-o", f"remount,size={max(size_bytes, _PAGE_BYTES)}", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
