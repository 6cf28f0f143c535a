"""Copies of stores that lie elsewhere than in the instance's own folder: savepoints, and standbys that still follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidemark.names import TaskId
from tidemark.start.evidence import SourceOfState, StateCopy


class CopySource(Protocol):
    """Where copies of one application's stores can be had."""

    @property
    def kind(self) -> SourceOfState:
        """What the copies are called in a plan."""

    def find(self, tasks: Sequence[TaskId]) -> Mapping[TaskId, Mapping[str, Sequence[StateCopy]]]:
        """Copies by store of each of the tasks. What cannot be read is left out, with a line in the log. Blocks."""

    def fetch(self, copy: StateCopy, task: TaskId, store: str, folder: Path) -> None:
        """Make `folder`, which does not exist, the copy's RocksDB folder, checked against its checksums.

        Raises `CopyUnusable` naming what is wrong; what is half there in `folder` is the caller's to remove.
        """


def find_copies(sources: Sequence[CopySource], tasks: Sequence[TaskId]) -> dict[TaskId, dict[str, list[StateCopy]]]:
    """All copies of the tasks' stores, by store; every source is asked once."""
    found: dict[TaskId, dict[str, list[StateCopy]]] = {task: {} for task in tasks}
    for source in sources:
        for task, by_store in source.find(tasks).items():
            for store, copies in by_store.items():
                found[task].setdefault(store, []).extend(copies)
    return found
