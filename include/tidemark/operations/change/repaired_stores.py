"""Notes of which stores a repair has compared with their changelogs, and when: `<state_dir>/.repairs/<app>.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.names import TaskId

REPAIRS_FOLDER = ".repairs"


def repaired_ms(state_dir: Path, application_id: str) -> dict[tuple[TaskId, str], int]:
    """Return when a repair last found or made each store's changelog right, in epoch milliseconds, by task and store."""
    try:
        found = json.loads(_path(state_dir, application_id).read_text())
    except FileNotFoundError:
        return {}
    return {
        (TaskId.parse(task), store): int(at_ms) for task, stores in found.items() for store, at_ms in stores.items()
    }


def note_repaired(state_dir: Path, application_id: str, stores: Iterable[tuple[TaskId, str]], at_ms: int) -> None:
    """Note that the changelogs of these stores were right at a time."""
    noted: dict[str, dict[str, int]] = {}
    for (task, store), known_ms in (repaired_ms(state_dir, application_id) | dict.fromkeys(stores, at_ms)).items():
        noted.setdefault(str(task), {})[store] = known_ms
    path = _path(state_dir, application_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(noted), synced=True)


def _path(state_dir: Path, application_id: str) -> Path:
    return state_dir / REPAIRS_FOLDER / f"{application_id}.json"
