"""Which watcher an instance has. The one that took it last may stop it; an earlier one only looks on.

Airflow calls a trigger's `on_kill` also when a triggerer that was frozen finds its triggers moved to another one, and
when a cleared task has already been taken up again. Neither may stop an instance that somebody else watches by then.
"""

from __future__ import annotations

from tidemark_airflow.identity import InstanceFiles, read_json, write_json


def take(files: InstanceFiles, watcher: str) -> None:
    """Make `watcher` the one that watches from now on."""
    write_json(files.watcher, {"watcher": watcher})


def is_held_by(files: InstanceFiles, watcher: str) -> bool:
    """Whether nobody took the instance after `watcher` did."""
    recorded = read_json(files.watcher)
    return isinstance(recorded, dict) and recorded.get("watcher") == watcher
