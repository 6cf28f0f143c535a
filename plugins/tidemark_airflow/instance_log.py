"""The part of an instance's log that belongs to one launch."""

from __future__ import annotations

import re
from pathlib import Path

_MAX_BYTES = 256 << 10
_MAX_TOLD = 50
_ERROR_PREFIX = "tidemark: "
# As Python's logging and Spark's log4j begin a line: two words of time, then the level.
_LEVEL = re.compile(r"\d\S* \d\S* (TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL) ")
_QUIET = frozenset({"TRACE", "DEBUG", "INFO"})


class LogTail:
    """What is in a log from `start_bytes` on, as it comes. A file that is not there yet, or is shorter, has nothing."""

    def __init__(self, path: Path, start_bytes: int) -> None:
        self._path = path
        self._at = start_bytes

    def lines(self, *, unfinished: bool = False) -> list[str]:
        """Those since the last call; of a long part its end, after a line that says so.

        A line whose end is not written yet is left for the next call, unless `unfinished`.
        """
        try:
            with self._path.open("rb") as log:
                size = log.seek(0, 2)
                start = max(self._at, size - _MAX_BYTES)
                if start >= size:
                    return []
                log.seek(start)
                read = log.read(size - start)
        except FileNotFoundError:
            return []
        if not unfinished:
            read = read[: read.rfind(b"\n") + 1]
        passed_over, self._at = start - self._at, start + len(read)
        lines = read.decode(errors="replace").splitlines()
        return [f"… {passed_over} earlier bytes are in {self._path}", *lines[1:]] if passed_over else lines


class Warnings:
    """Of a log's lines those that say something is wrong, each with the lines that belong to it."""

    def __init__(self, path: Path, start_bytes: int) -> None:
        self._path = path
        self._tail = LogTail(path, start_bytes)
        self._is_loud = False

    def new(self) -> list[str]:
        """Those since the last call; of many the first, and where the others are."""
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
    """The lines from `start_bytes` on; of a long part its end, after a line that says so. Empty when there is none."""
    return LogTail(path, start_bytes).lines(unfinished=True)


def last_error(lines: list[str]) -> str | None:
    """What an instance said last about why it ended: its `tidemark: …` line, or else its last line."""
    for line in reversed(lines):
        position = line.find(_ERROR_PREFIX)
        if position >= 0:
            return line[position + len(_ERROR_PREFIX) :]
    return next((line for line in reversed(lines) if line.strip()), None)
