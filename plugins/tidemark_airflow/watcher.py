"""Which watcher an instance has. The one that took it last may stop it; an earlier one only looks on.

Airflow calls a trigger's `on_kill` also when a triggerer that was frozen finds its triggers moved to another one, and
when a cleared task has already been taken up again. Neither may stop an instance that somebody else watches by then.
"""

from __future__ import annotations

import logging

from tidemark_airflow.identity import InstanceFiles, read_json, write_json

log = logging.getLogger(__name__)


def take(files: InstanceFiles, watcher: str) -> bool:
    """Make `watcher` the one that watches from now on; False where that cannot be written, as the disk is full.

    The instance is watched all the same: only who may stop it, and looks after its deadline, is not this one yet.
    """
    try:
        write_json(files.watcher, {"watcher": watcher})
    except OSError as error:
        log.warning("instance %s: who watches it cannot be written down: %s", files.key, error)
        return False
    return True


def recorded(files: InstanceFiles) -> str | None:
    """Who took the instance last; None when nobody is recorded."""
    found = read_json(files.watcher)
    return str(found.get("watcher")) if isinstance(found, dict) else None


def is_held_by(files: InstanceFiles, watcher: str) -> bool:
    """Whether nobody took the instance after `watcher` did."""
    return recorded(files) == watcher
