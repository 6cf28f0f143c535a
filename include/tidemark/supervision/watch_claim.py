"""Records which trigger watches an instance, and that it still does. Only the last one to be recorded may stop the instance.

Airflow calls a trigger's `on_kill` also when a frozen triggerer finds that its triggers have moved to another triggerer, and
when a cleared task already runs again. In neither case may it stop an instance that another trigger watches by then.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress

from tidemark.supervision.instance_files import InstanceFiles, read_json, write_json

log = logging.getLogger(__name__)

_FRESH_S = 120.0
"""A watcher renews its record every few seconds. A triggerer that takes over another one's triggers needs less than this."""


def take(files: InstanceFiles, watcher: str) -> bool:
    """Record `watcher` as the one that watches from now on. Returns False if that cannot be written (the disk is full).

    The instance is watched in any case, but this watcher may not stop it yet.
    """
    try:
        write_json(files.watcher, {"watcher": watcher})
    except OSError as error:
        log.warning("instance %s: failed to record which trigger watches it: %s", files.key, error)
        return False
    return True


def recorded(files: InstanceFiles) -> str | None:
    """Return the watcher that was recorded last, or None if there is none."""
    found = read_json(files.watcher)
    return str(found.get("watcher")) if isinstance(found, dict) else None


def is_held_by(files: InstanceFiles, watcher: str) -> bool:
    """Return whether `watcher` is the watcher that was recorded last."""
    return recorded(files) == watcher


def renew(files: InstanceFiles) -> None:
    """Record that the instance is still watched."""
    with suppress(OSError):
        os.utime(files.watcher)


def is_watched(files: InstanceFiles) -> bool:
    """Return whether a watcher has said lately that it watches the instance."""
    try:
        # If the clock was set back, the age is negative, and says as little as that of an old record.
        return abs(time.time() - files.watcher.stat().st_mtime) < _FRESH_S
    except FileNotFoundError:
        return False
