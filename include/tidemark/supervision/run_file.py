"""`<var_dir>/instances/<app>-<instance>.json`: the state of a running instance, for supervisors and commands."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tidemark.atomic_file import replace_file

log = logging.getLogger(__name__)

_REWRITE_S = 1.0


def run_file_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Return the path of an instance's run file."""
    return var_dir / "instances" / f"{application_id}-{instance}.json"


def standby_file_path(var_dir: Path, application_id: str, number: int) -> Path:
    """Return the path of a standby's run file, which is in another folder so that it is not taken for an instance's."""
    return var_dir / "standbys" / f"{application_id}-{number}.json"


def read_run_file(path: Path) -> dict[str, Any] | None:
    """Return the content, or None if the file is missing or damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content


class RunFile:
    """A run file that is replaced atomically, at most once a second unless a change matters. Safe to use from several threads.

    If it cannot be written, most often because the disk is full, it logs one warning and tries again at an update a second
    later. The progress of the instance cannot be seen meanwhile, but the stream continues.
    """

    def __init__(self, path: Path, fixed: Mapping[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {
            "pid": os.getpid(),
            "start_time": psutil.Process().create_time(),
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
            log.info("run file %s is written again", self._path)
        self._is_behind = False
