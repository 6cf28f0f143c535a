"""Copying of checkpoints to the repository: the slow part of a savepoint, during which the stream continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import SavepointFailed
from tidemark.names import TaskId
from tidemark.savepoints.manifest import LeftOut, SavedStore, TaskManifest, left_out
from tidemark.savepoints.repository import SavepointRepository
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class LinkedStore:
    """A checkpoint of one store, in a folder to which no process writes."""

    store: str
    checkpoint: StoreCheckpoint
    folder: Path

    @property
    def files(self) -> list[Path]:
        """The files, sorted by name; RocksDB's folders have no subfolders."""
        return sorted(self.folder.iterdir())


@dataclass(frozen=True)
class LinkedTask:
    """The checkpoints of one task."""

    task: TaskId
    stores: tuple[LinkedStore, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class LinkedSavepoint:
    """All checkpoints that one process made, below `folder`, which contains nothing else."""

    savepoint_id: str
    application_id: str
    topology_version: str
    taken_ms: int
    folder: Path
    tasks: tuple[LinkedTask, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(f.stat().st_size for task in self.tasks for store in task.stores for f in store.files)


@dataclass
class CopyCount:
    """Counts the bytes that were checked, and those of them that had to be copied. `on_change` may raise `SavepointFailed`."""

    on_change: Callable[[], None]
    done_bytes: int = 0
    copied_bytes: int = 0

    def tick(self, checked_bytes: int) -> None:
        """Count one more chunk."""
        self.done_bytes += checked_bytes
        self.on_change()


def link_task(task: TaskId, stores: Mapping[StoreSpec, RocksStore | None], folder: Path) -> LinkedTask:
    """Checkpoint a task's stores below `folder`. The value in `stores` is None for a store that is not RocksDB's.

    Raises `SavepointFailed`.
    """
    linked: list[LinkedStore] = []
    without: list[LeftOut] = []
    for spec, store in stores.items():
        reason = left_out(spec)
        checkpoint = None if store is None else store.checkpoint
        if reason is not None:
            without.append(reason)
        elif store is None or checkpoint is None:
            without.append(LeftOut(spec.name, "nothing was ever committed"))
        else:
            target = folder / str(task) / spec.name
            store.create_checkpoint(target)
            linked.append(LinkedStore(spec.name, checkpoint, target))
    return LinkedTask(task, tuple(linked), tuple(without))


def copy_linked(linked: LinkedSavepoint, repository: SavepointRepository, count: CopyCount) -> None:
    """Copy new files, task by task, and delete the links of each task that is done. Blocks. Raises `SavepointFailed`.

    A task's manifest is written once all of its files are there; only then does the task count.
    """
    try:
        for task in linked.tasks:
            repository.put_task(
                TaskManifest(
                    linked.savepoint_id,
                    linked.application_id,
                    linked.topology_version,
                    str(task.task),
                    linked.taken_ms,
                    tuple(_copied(store, repository, count) for store in task.stores),
                    task.left_out,
                )
            )
            shutil.rmtree(linked.folder / str(task.task), ignore_errors=True)
    except OSError as error:
        raise SavepointFailed(f"the links in {linked.folder} cannot be read: {error.strerror}") from error
    finally:
        shutil.rmtree(linked.folder, ignore_errors=True)


def _copied(store: LinkedStore, repository: SavepointRepository, count: CopyCount) -> SavedStore:
    files = []
    for path in store.files:
        saved, copied_bytes = repository.put_file(path, count.tick)
        count.copied_bytes += copied_bytes
        files.append(saved)
    return SavedStore(store.store, store.checkpoint, tuple(files))
