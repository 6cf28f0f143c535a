"""`<var_dir>/instances/<app>-<instance>.json`: what a running instance says of itself to supervisors and commands."""

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

from tidemark.files import replace_file

log = logging.getLogger(__name__)

_REWRITE_S = 1.0


def run_file_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Where the file lies."""
    return var_dir / "instances" / f"{application_id}-{instance}.json"


def standby_file_path(var_dir: Path, application_id: str, number: int) -> Path:
    """Where a standby's lies: apart, for what is asked of instances is nothing to it."""
    return var_dir / "standbys" / f"{application_id}-{number}.json"


def read_run_file(path: Path) -> dict[str, Any] | None:
    """The content, or None when there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content


class RunFile:
    """Rewritten atomically, once a second at most unless the change matters. Safe to use from several threads.

    What cannot be written, most often as the disk is full, is said once and tried again at the next update a second
    later: nobody can see how far the instance is meanwhile, which is no reason for a stream to end.
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
        """Merge `changes`; write when `now`, or when the last writing is a second old. Never raises."""
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
                    "run file %s cannot be written (%s): the stream goes on, and `tidemark status` shows what it was; make "
                    "room, or make the folder writable",
                    self._path, error.strerror,
                )  # fmt: skip
            self._is_behind = True
            return
        if self._is_behind:
            log.info("run file %s is written again", self._path)
        self._is_behind = False
