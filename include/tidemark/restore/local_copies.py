"""The state folders of this machine as copies to restore from. Their instances may be running."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from tidemark.errors import CopyUnusable, StoreFailed, StoreUnavailable, TaskCorrupted
from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.fencing import holders
from tidemark.stores.directory import STORES_FOLDER
from tidemark.stores.rocksdb import CHECKPOINT_KEY, opened
from tidemark.stores.rocksdb_snapshot import shows_damage
from tidemark.stores.store_checkpoint import StoreCheckpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalCopies:
    """Implements `CopySource`. Fetching makes hard links, so the folder that is copied stays as it is."""

    state_dir: Path
    application_id: str
    kind: SourceOfState = SourceOfState.LOCAL

    def find(self, tasks: Sequence[TaskId]) -> Mapping[TaskId, Mapping[str, Sequence[StateCopy]]]:
        """Return the stores with a readable checkpoint; a damaged one is left out and logged."""
        return {task: self._find(task) for task in tasks}

    def _find(self, task: TaskId) -> dict[str, list[StateCopy]]:
        found: dict[str, list[StateCopy]] = {}
        for holder in holders(self.state_dir, self.application_id):
            for folder in sorted((holder / str(task) / STORES_FOLDER).glob("*")):
                if (
                    not (folder / "CURRENT").exists()
                    or folder.name.endswith(".restoring")
                    or ".corrupt-" in folder.name
                ):
                    continue
                try:
                    checkpoint = read_store_checkpoint(folder)
                except (TaskCorrupted, StoreUnavailable) as error:
                    log.warning("%s; this copy is skipped", error)
                    continue
                if checkpoint is not None:
                    found.setdefault(folder.name, []).append(StateCopy(self.kind, checkpoint, str(folder)))
        return found

    def fetch(self, copy: StateCopy, task: TaskId, store: str, folder: Path) -> None:
        """Hard-link the store's files. Raises `CopyUnusable` if it cannot be opened, `StoreFailed` if the disk is full."""
        try:
            with opened(Path(copy.location)) as held:
                held.create_checkpoint(folder)
        except (TaskCorrupted, StoreUnavailable) as error:
            raise CopyUnusable(str(error)) from error
        except StoreFailed:
            raise
        except Exception as error:
            raise CopyUnusable(f"{copy.location} cannot be copied: {error}") from error


def read_store_checkpoint(folder: Path) -> StoreCheckpoint | None:
    """Return a store's checkpoint, None if it has none. Another process may have the store open.

    Raises `TaskCorrupted` if its files are damaged, `StoreUnavailable` if they cannot be opened now and may be intact.
    """
    try:
        database = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            stored = database.get(CHECKPOINT_KEY)
        finally:
            database.close()
    except Exception as error:
        failure = TaskCorrupted if shows_damage(error) else StoreUnavailable
        raise failure(f"cannot open the store in {folder}: {error}") from error
    return None if stored is None else StoreCheckpoint.from_bytes(stored)
