"""Savepoints as a source of state for tasks that start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tidemark.atomic_file import as_full_disk
from tidemark.clock import wall_clock_ms
from tidemark.errors import CopyUnusable, SavepointFailed
from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.savepoints.manifest import SavepointManifest
from tidemark.savepoints.repository import SavepointRepository

log = logging.getLogger(__name__)

_NEWEST = 3


@dataclass(frozen=True)
class SavepointCopies:
    """Implements `CopySource` with at most the `most` newest complete savepoints. Safe to use from several threads.

    `clock` returns epoch milliseconds. Savepoints that were named by a clock that was ahead count as older than all others.
    """

    repository: SavepointRepository
    most: int = _NEWEST
    clock: Callable[[], int] = wall_clock_ms

    @property
    def kind(self) -> SourceOfState:
        """The kind of copy: a savepoint."""
        return SourceOfState.SAVEPOINT

    def find(self, tasks: Sequence[TaskId]) -> Mapping[TaskId, Mapping[str, Sequence[StateCopy]]]:
        """Return the copies by store, the newest savepoint first. A savepoint that cannot be read is left out and logged."""
        found: dict[TaskId, dict[str, list[StateCopy]]] = {task: {} for task in tasks}
        try:
            for manifest in self._newest():
                for task in tasks:
                    if str(task) in manifest.tasks:
                        self._add(found[task], manifest.savepoint_id, str(task))
        except SavepointFailed as error:
            log.warning("no savepoint is considered: %s", error)
        return found

    def _newest(self) -> list[SavepointManifest]:
        whole: list[SavepointManifest] = []
        for savepoint_id in self.repository.newest_first(self.clock()):
            try:
                whole.append(self.repository.manifest(savepoint_id))
            except CopyUnusable as error:
                log.warning("a savepoint is left out: %s", error)
            if len(whole) == self.most:
                break
        return whole

    def _add(self, found: dict[str, list[StateCopy]], savepoint_id: str, task: str) -> None:
        try:
            manifest = self.repository.task(savepoint_id, task)
        except CopyUnusable as error:
            log.warning("a savepoint is left out: %s", error)
            return
        location = self.repository.url(savepoint_id, f"{task}.json")
        for store in manifest.stores:
            copy = StateCopy(SourceOfState.SAVEPOINT, store.checkpoint, location, store.size_bytes)
            found.setdefault(store.store, []).append(copy)

    def fetch(self, copy: StateCopy, task: TaskId, store: str, folder: Path) -> None:
        """Download a store into `folder`, which must not exist, and verify each file's checksum.

        Raises `CopyUnusable`, and `StoreFailed` if this machine's disk is full.
        """
        savepoint_id = PurePosixPath(copy.location).parent.name
        try:
            saved = self.repository.task(savepoint_id, str(task)).store(store)
        except SavepointFailed as error:
            raise CopyUnusable(str(error)) from error
        if saved is None:
            raise CopyUnusable(f"{copy.location}: it does not contain store {store}")
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            unusable = CopyUnusable(f"{copy.location} cannot be copied to {folder}: {error.strerror}")
            raise as_full_disk(error) or unusable from error
        for file in saved.files:
            try:
                self.repository.fetch_file(file, folder / file.name)
            except CopyUnusable as error:
                raise CopyUnusable(f"{copy.location}: {file.name} of store {store}: {error}") from error
