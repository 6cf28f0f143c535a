"""`<var_dir>/instances/<app>-<instance>.json`: the state of a running instance, for supervisors and commands."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.atomic_file import replace_file
from tidemark.processes import Identity
from tidemark.supervision.state import ENDED_STATES

log = logging.getLogger(__name__)

LOST = "LOST"
"""Shown as the state of a process that ended without recording its end."""

QUERY_URL, QUERY_ERROR = "query_url", "query_error"
"""Fields: where the process answers queries, or why it does not. Both are null if queries are switched off."""

INSTANCES_FOLDER = "instances"
STANDBYS_FOLDER = "standbys"
"""The folder of standbys' files is another one, so that none is taken for an instance's."""

_REWRITE_S = 1.0


def run_file_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Return the path of an instance's run file."""
    return var_dir / INSTANCES_FOLDER / f"{application_id}-{instance}.json"


def standby_file_path(var_dir: Path, application_id: str, number: int) -> Path:
    """Return the path of a standby's run file."""
    return var_dir / STANDBYS_FOLDER / f"{application_id}-{number}.json"


def read_run_file(path: Path) -> dict[str, Any] | None:
    """Return the content, or None if the file is missing or damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content


def recorded_process(content: Mapping[str, Any]) -> Identity | None:
    """Return the process that wrote a run file with this content; None if the content does not name one."""
    try:
        return Identity(int(content["pid"]), float(content["started_after_boot_s"]), str(content["boot_id"]))
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class RunView:
    """The contents of an instance's run file, in which it reports its state."""

    process: Identity
    state: str
    written_at: float
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunView | None:
        """Read a run file. Returns None if it is missing or malformed."""
        try:
            values = read_run_file(path)
            process = None if values is None else recorded_process(values)
            if values is None or process is None:
                return None
            return cls(process, str(values["state"]), path.stat().st_mtime, values)
        except (KeyError, UnicodeDecodeError, FileNotFoundError):
            return None

    def has_ended(self) -> bool:
        """Return whether the instance recorded its own end. An instance that was killed could not."""
        return self.state in ENDED_STATES

    def shown_state(self, *, is_alive: bool) -> str:
        """Return the state to show to people: `LOST` if the process ended without recording its end."""
        return self.state if is_alive or self.has_ended() else LOST

    def is_running(self) -> bool:
        """Return whether the process that wrote the file still runs and has not recorded its end."""
        return not self.has_ended() and self.process.is_alive()


class RunFile:
    """A run file that is replaced atomically, at most once a second unless a change matters. Safe to use from several threads.

    If it cannot be written, most often because the disk is full, it logs one warning and tries again at an update a second
    later. The progress of the instance cannot be seen meanwhile, but the stream continues.
    """

    def __init__(self, path: Path, fixed: Mapping[str, Any]) -> None:
        self._path = path
        own = Identity.own()
        self._content: dict[str, Any] = {
            "pid": own.pid,
            "started_after_boot_s": own.started_after_boot_s,
            "boot_id": own.boot_id,
            **fixed,
        }
        self._written_at = 0.0
        self._is_behind = False
        self._lock = threading.Lock()

    def update(self, changes: Mapping[str, Any], *, now: bool = False) -> None:
        """Merge `changes`; write if `now` is set or if the last write is a second old. Never raises."""
        with self._lock:
            self._content.update(changes)
            if not now and time.monotonic() - self._written_at < _REWRITE_S:
                return
            self._write()
            self._written_at = time.monotonic()

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._content), synced=False)
        except OSError as error:
            if not self._is_behind:
                log.warning(
                    "run file %s cannot be written (%s): the stream continues, and `tidemark status` shows old values; free "
                    "space on the disk, or make the folder writable",
                    self._path, error.strerror,
                )  # fmt: skip
            self._is_behind = True
            return
        if self._is_behind:
            log.info("run file %s can be written again", self._path)
        self._is_behind = False
