"""Bounds the log of an instance while it runs.

Driver, JVM and Python workers append to one file that all of them have open, so renaming it would take their output along.
Instead it is copied to `<log>.1` and cut to nothing: as the file is open for appending, they continue at its new end. The lines
that come during the copy are added to it. Only those of the microseconds between the last look for them and the cut are lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_START_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
# A copy leaves this much of the disk to the stores.
_RESERVE_BYTES = 64 << 20


def earlier_part(log: Path) -> Path:
    """Return the file with what was in the log before it was cut last."""
    return log.with_name(f"{log.name}.1")


def start_part(log: Path) -> Path:
    """Return the file with the first lines of the present launch, which exists once the log was cut since then."""
    return log.with_name(f"{log.name}.start")


def bound_log(log: Path, start_bytes: int, most_bytes: int) -> int:
    """Cut the log if it has `most_bytes`, and return where the present launch begins now.

    `start_bytes` is where it began before. A negative position counts back from the end of the earlier part. The first cut of a
    launch also keeps its first lines. Nothing is changed if the disk has no room for the copy. Blocks for the time of a copy.
    Raises `OSError`; then the log is as it was.
    """
    size = log.stat().st_size if log.exists() else 0
    if size < most_bytes or not _has_room(log, size):
        return start_bytes
    if 0 <= start_bytes < size:
        _copy(log, start_bytes, start_part(log), _START_BYTES)
    # Larger only if no supervisor was there to cut it.
    end = _copy(log, 0 if size < 2 * most_bytes else size - most_bytes, earlier_part(log))
    end += _add_newest(log, end, earlier_part(log))
    os.truncate(log, 0)
    return start_bytes - end


def _has_room(log: Path, size: int) -> bool:
    return shutil.disk_usage(log.parent).free >= size + _START_BYTES + _RESERVE_BYTES


def _copy(log: Path, start: int, to: Path, most_bytes: int | None = None) -> int:
    """Replace a file by a part of the log, up to its end or of `most_bytes`. Returns where the part ends."""
    temporary = to.with_name(f"{to.name}.tmp")
    try:
        with log.open("rb") as source, temporary.open("wb") as copy:
            source.seek(start)
            if most_bytes is None:
                shutil.copyfileobj(source, copy)
            else:
                copy.write(source.read(most_bytes))
            end = source.tell()
        temporary.replace(to)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return end


def _add_newest(log: Path, start: int, to: Path) -> int:
    """Append to a file what the log has from `start` on, until there is no more. Returns how many bytes were appended.

    On a full disk that may be less: the file is complete up to there, so the log can be cut all the same.
    """
    added = 0
    with contextlib.suppress(OSError), log.open("rb") as source, to.open("ab", buffering=0) as copy:
        source.seek(start)
        while more := source.read(_CHUNK_BYTES):
            added += copy.write(more)
    return added
