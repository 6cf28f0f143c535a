"""The part of an instance's log that belongs to one launch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tidemark.errors import RECORDS_PREFIX, TidemarkError
from tidemark.supervision.log_rotation import earlier_part

_MAX_BYTES = 256 << 10
_MAX_TOLD = 50
_ERROR_PREFIX = "tidemark: "
# How Python's logging and Spark's log4j begin a line: two words of time, then the level.
_LEVEL = re.compile(r"\d\S* \d\S* (TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL) ")
_QUIET = frozenset({"TRACE", "DEBUG", "INFO"})


def error_lines(error: TidemarkError, output: str | None = None) -> str:
    """Return what a process prints when it ends with an error: its message and, in a line of its own before it, its records.

    `output` is what readers know the output of the process by. The message, which others see without that line, then refers to
    it. A job passes nothing: the process that started it does not keep its output.
    """
    message = f"{_ERROR_PREFIX}{' '.join(str(error).split())}"
    if not error.records:
        return message
    place = f"; the details, which may quote records, are in the line before this message in {output}" if output else ""
    return f"{RECORDS_PREFIX}{' '.join(error.records.split())}\n{message}{place}"


class LogTail:
    """Reads a log from `start_bytes` on as it grows. A missing file counts as empty, as does a shorter one that was not cut.

    A negative position counts back from the end of the earlier part of a log that was cut (see `log_rotation`). If only the end
    of a log was copied, reading continues with what was written after the cut. Lines with the records of an error are left out,
    because everybody who may read the DAG can read the log of a task.
    """

    def __init__(self, path: Path, start_bytes: int) -> None:
        self._path = path
        self._at = start_bytes

    def lines(self, *, unfinished: bool = False) -> list[str]:
        """Return the lines since the last call. Of a long part, only the end is returned, after a line that says so.

        A line that is not complete yet is left for the next call, unless `unfinished` is set.
        """
        try:
            start, read = self._unread()
        except FileNotFoundError:
            return []
        if not unfinished:
            read = read[: read.rfind(b"\n") + 1]
        if not read:
            return []
        passed_over, self._at = start - self._at, start + len(read)
        lines = [line for line in read.decode(errors="replace").splitlines() if not line.startswith(RECORDS_PREFIX)]
        return [f"… {passed_over} earlier bytes are in {self._path}", *lines[1:]] if passed_over else lines

    def _unread(self) -> tuple[int, bytes]:
        """Return what was not read yet, and its position. Raises `FileNotFoundError`."""
        with self._path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            earlier = _bytes_of(earlier_part(self._path))
            if size < self._at and earlier:
                # The log was cut since the last call, or before the launch record could say so. Of one that was longer than the
                # earlier part, only the end was copied, so the position in that part is unknown.
                self._at = self._at - earlier if self._at <= earlier else 0
            start = max(self._at, size - _MAX_BYTES, -earlier)
            if start >= size:
                return size, b""
            read = _last_bytes(earlier_part(self._path), -start) if start < 0 else b""
            log.seek(max(start, 0))
            return start, read + log.read(size - max(start, 0))


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-count, os.SEEK_END)
        return file.read(count)


class Warnings:
    """Reads from a log only the warnings and errors, each with the lines that follow it (such as a stack trace)."""

    def __init__(self, path: Path, start_bytes: int) -> None:
        self._path = path
        self._tail = LogTail(path, start_bytes)
        self._is_loud = False

    def new(self) -> list[str]:
        """Return the lines since the last call. If there are many, the first ones and where to find the others."""
        found = [line for line in self._tail.lines() if self._is_told(line)]
        more = len(found) - _MAX_TOLD
        return found if more <= 0 else [*found[:_MAX_TOLD], f"… {more} more lines are in {self._path}"]

    def _is_told(self, line: str) -> bool:
        if level := _LEVEL.match(line):
            self._is_loud = level[1] not in _QUIET
        elif line.startswith(_ERROR_PREFIX):
            self._is_loud = True
        return self._is_loud


def read_part(path: Path, start_bytes: int) -> list[str]:
    """Return the lines of a log from `start_bytes` on. Of a long part, only the end, after a line that says so.

    Returns an empty list if there are none.
    """
    return LogTail(path, start_bytes).lines(unfinished=True)


def last_message(lines: Sequence[str]) -> str | None:
    """Return the message of the last error with which a process of Tidemark ended, or None if its lines have none."""
    for line in reversed(lines):
        position = line.find(_ERROR_PREFIX)
        if position >= 0:
            return line[position + len(_ERROR_PREFIX) :]
    return None


def last_error(lines: Sequence[str]) -> str | None:
    """Return the reason that an instance logged last: its last `tidemark: …` line, or else its last line."""
    return last_message(lines) or next((line for line in reversed(lines) if line.strip()), None)
