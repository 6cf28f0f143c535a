"""Sources of copies of stores outside the instance's own folder: savepoints, and standbys that are running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState


class CopySource(Protocol):
    """A place that holds copies of one application's stores."""

    @property
    def kind(self) -> SourceOfState:
        """The name of this kind of copy in a plan."""

    def find(self, tasks: Sequence[TaskId]) -> Mapping[TaskId, Mapping[str, Sequence[StateCopy]]]:
        """Return the copies of each task's stores, by store. A copy that cannot be read is left out and logged. Blocks."""

    def fetch(self, copy: StateCopy, task: TaskId, store: str, folder: Path) -> None:
        """Fetch the RocksDB folder of the copy to `folder`, which must not exist, and verify its checksums. Blocks.

        Raises `CopyUnusable`, which names the fault, and `StoreFailed` if this machine's disk is full; the caller removes
        what was written to `folder` by then.
        """


def find_copies(sources: Sequence[CopySource], tasks: Sequence[TaskId]) -> dict[TaskId, dict[str, list[StateCopy]]]:
    """Return all copies of the tasks' stores, by task and store. Each source is asked once. Blocks."""
    found: dict[TaskId, dict[str, list[StateCopy]]] = {task: {} for task in tasks}
    for source in sources:
        for task, by_store in source.find(tasks).items():
            for store, copies in by_store.items():
                found[task].setdefault(store, []).extend(copies)
    return found
