"""The part of an instance's log that belongs to one launch."""

from __future__ import annotations

from pathlib import Path

_MAX_BYTES = 256 << 10
_ERROR_PREFIX = "tidemark: "


def read_part(path: Path, start_bytes: int) -> list[str]:
    """The lines from `start_bytes` on; of a long part its end, after a line that says so. Empty when there is none."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            start = max(start_bytes, size - _MAX_BYTES)
            if start > size:
                return []
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    if start > start_bytes:
        return [f"… {start - start_bytes} earlier bytes are in {path}", *lines[1:]]
    return lines


def last_error(lines: list[str]) -> str | None:
    """What an instance said last about why it ended: its `tidemark: …` line, or else its last line."""
    for line in reversed(lines):
        position = line.find(_ERROR_PREFIX)
        if position >= 0:
            return line[position + len(_ERROR_PREFIX) :]
    return next((line for line in reversed(lines) if line.strip()), None)
