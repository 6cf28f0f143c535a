"""`<var_dir>/instances/<app>-<instance>.json`: what a running instance says of itself to supervisors and commands."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tidemark.files import replace_file

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
    """Rewritten atomically, once a second at most unless the change matters. Safe to use from several threads."""

    def __init__(self, path: Path, fixed: Mapping[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {
            "pid": os.getpid(),
            "start_time": psutil.Process().create_time(),
            **fixed,
        }
        self._written_at = 0.0
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def update(self, changes: Mapping[str, Any], *, now: bool = False) -> None:
        """Merge `changes`; write when `now`, or when the last writing is a second old."""
        with self._lock:
            self._content.update(changes)
            if not now and time.monotonic() - self._written_at < _REWRITE_S:
                return
            replace_file(self._path, json.dumps(self._content), synced=False)
            self._written_at = time.monotonic()
