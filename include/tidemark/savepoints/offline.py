"""A savepoint of an application that is not running: checkpoints of the state folders on this disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tidemark.commit.record import CommitRecord
from tidemark.errors import SavepointFailed, StoreUnavailable, TaskCorrupted, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.candidates import has_changes_of, level_batches
from tidemark.recovery.evidence import CommittedProgress
from tidemark.savepoints.manifest import left_out
from tidemark.savepoints.upload import LinkedSavepoint, LinkedTask, link_task
from tidemark.settings import Settings
from tidemark.stores.directory import STORES_FOLDER
from tidemark.stores.layout import ValueLayout
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.task import changelog_of
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan

log = logging.getLogger(__name__)

LINKS_FOLDER = ".savepoints"
"""Folder of the state folder with the checkpoints of each stopped application that are being copied."""


@dataclass(frozen=True)
class StoppedFolders:
    """All folders of the application below `state_dir`, those of instances and of standbys."""

    plan: TopologyPlan
    settings: Settings

    @property
    def links(self) -> Path:
        """The folder in which `link` creates its checkpoints. While they are there, the disk keeps their files."""
        return self.settings.state_dir / LINKS_FOLDER / self.plan.application_id

    def link(self, savepoint_id: str, taken_ms: int) -> LinkedSavepoint:
        """Checkpoint every store that is here; of a store that is here twice, the copy that is furthest.

        Holds the process locks of the folders meanwhile, which takes milliseconds. A folder that another process holds
        is left out and logged, and so is a store that cannot be read. Raises `SavepointFailed`. The caller makes sure that
        only one process uses `links` at a time, and deletes it.
        """
        folder = self.links / savepoint_id
        with ExitStack() as opened:
            found = self._stores(opened)
            linked = [self._link_task(task, stores, folder) for task, stores in sorted(found.items())]
        tasks = tuple(task for task in linked if task is not None)
        return LinkedSavepoint(savepoint_id, self.plan.application_id, self.plan.version, taken_ms, folder, tasks)

    def _link_task(self, task: TaskId, stores: Mapping[str, RocksStore], links: Path) -> LinkedTask | None:
        """Checkpoint the stores of a task. Returns None if one is missing that should be there."""
        specs = self.plan.subtopologies[task.subtopology].stores
        lacking = [spec.name for spec in specs if left_out(spec) is None and spec.name not in stores]
        if lacking:
            log.warning("task %s is left out: store %s is missing here or cannot be read", task, ", ".join(lacking))
            return None
        by_spec: dict[StoreSpec, RocksStore | None] = {spec: stores.get(spec.name) for spec in specs}
        return link_task(task, by_spec, links)

    def _stores(self, opened: ExitStack) -> dict[TaskId, dict[str, RocksStore]]:
        """Return the furthest copy of each store. They are open, and their folders locked, until `opened` ends."""
        found: dict[TaskId, dict[str, RocksStore]] = {}
        for folder in self._locked(opened):
            for path in sorted(folder.glob(f"*/{STORES_FOLDER}")):
                task = self._task(path.parent.name)
                if task is None:
                    continue
                held = found.setdefault(task, {})
                for spec in self.plan.subtopologies[task.subtopology].stores:
                    store = self._open(path / spec.name, spec, opened)
                    if store is not None and (spec.name not in held or _place(store) > _place(held[spec.name])):
                        held[spec.name] = store
        return found

    def _locked(self, opened: ExitStack) -> list[Path]:
        folders: list[Path] = []
        # Hidden folders belong to restores or savepoints, not to an instance or a standby.
        for folder in sorted(self.settings.state_dir.glob(f"[!.]*/{self.plan.application_id}")):
            try:
                opened.callback(FolderLock(folder).release)
            except TaskLocked as error:
                log.warning("%s is left out: %s", folder, error)
                continue
            folders.append(folder)
        return folders

    def _task(self, name: str) -> TaskId | None:
        try:
            task = TaskId.parse(name)
        except ValueError:
            return None
        return task if task.subtopology < len(self.plan.subtopologies) else None

    def _open(self, folder: Path, spec: StoreSpec, opened: ExitStack) -> RocksStore | None:
        if not spec.is_rocksdb or not (folder / "CURRENT").exists():
            return None
        try:
            store = RocksStore(folder, write_buffer_bytes=self.settings.store_write_buffer_bytes)
        except (TaskCorrupted, StoreUnavailable) as error:
            log.warning("a store is left out: %s", error)
            return None
        opened.callback(store.close)
        return store


def format_behind(linked: LinkedSavepoint, plan: TopologyPlan, records: Mapping[TaskId, CommitRecord]) -> list[str]:
    """Return the tasks with a store that lacks the task's last commit, each with both batches. `records` are the last ones."""
    behind: list[str] = []
    for task in linked.tasks:
        record = records.get(task.task)
        subtopology = plan.subtopologies[task.task.subtopology]
        specs, layouts = {spec.name: spec for spec in subtopology.stores}, value_layouts(subtopology)
        batches = [
            store.checkpoint.batch
            for store in task.stores
            if record is not None
            and not _has_last_commit(store.checkpoint, specs[store.store], layouts[store.store], record)
        ]
        if record is not None and batches:
            behind.append(f"task {task.task} (batch {min(batches)}, the last one is {record.batch})")
    return behind


def _has_last_commit(
    checkpoint: StoreCheckpoint, spec: StoreSpec, layout: ValueLayout | None, record: CommitRecord
) -> bool:
    committed = CommittedProgress(record.end_offsets, record.batch, record.stream_times)
    if checkpoint.batch in level_batches(record, committed) and all(
        checkpoint.source_offsets.get(topic) == offset for topic, offset in committed.next_offsets.items()
    ):
        return True
    # A copy of a standby has no batch, but all that the commit wrote to the changelog, in one transaction, or nothing of it.
    changelog = TopicPartition(changelog_of(record.application_id, spec), record.task.partition)
    return has_changes_of(record, checkpoint, spec.name, value_signature(spec, layout), changelog)


def _place(store: RocksStore) -> tuple[int, int]:
    return (store.checkpoint.batch, store.checkpoint.changelog_offset) if store.checkpoint else (-1, -1)


def raise_if_nothing(linked: LinkedSavepoint, state_dir: Path) -> None:
    """Raise `SavepointFailed` if there was nothing to checkpoint."""
    if not any(task.stores for task in linked.tasks):
        raise SavepointFailed(
            f"no instance of {linked.application_id} is running, and no store in {state_dir} could be read: start the "
            "application, or set TIDEMARK_STATE_DIR to the folder with its state"
        )
