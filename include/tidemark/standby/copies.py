"""The copies of this machine's running standbys, as a source of state.

The folders of a standby that has ended need none of this: `InstanceDirectory.open_task` takes them over by renaming,
like those of any dead process. See invariants: source topic as changelog, one process per state folder.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.errors import CopyUnusable
from tidemark.folder_lock import is_locked
from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.standby.handover import take_over
from tidemark.standby.store_replica import FollowedStore
from tidemark.stores.directory import STANDBY_PREFIX, folder_of
from tidemark.stores.store_checkpoint import StoreCheckpoint

log = logging.getLogger(__name__)

COPIES_FILE = ".copies"
_ANSWER_S = 5.0
_SILENT_S = 15.0
"""A standby rewrites its list of copies every second. One that has not done so for this time hands nothing over either."""


def standby_name(number: int) -> str:
    """Return the holder's name of a standby, as in its state folder: `standby-0`."""
    return f"{STANDBY_PREFIX}{number}"


def write_copies(root: Path, stores: Iterable[FollowedStore]) -> None:
    """Write the checkpoint of each copy to `<root>/.copies`, by task and store. Atomic."""
    summary: dict[str, dict[str, object]] = {}
    for store in stores:
        if store.checkpoint is not None and store.holds_something:
            summary.setdefault(str(store.task), {})[store.job.spec.name] = asdict(store.checkpoint)
    replace_file(root / COPIES_FILE, json.dumps(summary), synced=False)


@dataclass(frozen=True)
class StandbyCopies:
    """Implements `CopySource`. Between `find` and `fetch` a copy may advance; it goes back only if it is built again."""

    state_dir: Path
    application_id: str
    answer_s: float = _ANSWER_S
    kind: SourceOfState = SourceOfState.STANDBY

    def find(self, tasks: Sequence[TaskId]) -> Mapping[TaskId, Mapping[str, Sequence[StateCopy]]]:
        """Return copies of standbys that are running, as they reported them within the last second or two."""
        found: dict[TaskId, dict[str, list[StateCopy]]] = {task: {} for task in tasks}
        for root in sorted(self.state_dir.glob(f"{STANDBY_PREFIX}*/{self.application_id}")):
            if not is_locked(root):
                continue
            if silence := _silence(root):
                log.warning("%s; its copies are skipped", silence)
                continue
            try:
                summary = json.loads((root / COPIES_FILE).read_text())
                checkpoints = {
                    (task, store): StoreCheckpoint(**checkpoint)
                    for task in tasks
                    for store, checkpoint in summary.get(str(task), {}).items()
                }
            except FileNotFoundError:
                # It has only just started.
                continue
            except (OSError, ValueError, TypeError, AttributeError) as error:
                log.warning(
                    "the list of copies of the standby in %s cannot be read (%s); its copies are skipped", root, error
                )
                continue
            for (task, store), checkpoint in checkpoints.items():
                location = str(folder_of(root, task, store))
                found[task].setdefault(store, []).append(StateCopy(self.kind, checkpoint, location))
        return found

    def fetch(self, copy: StateCopy, task: TaskId, store: str, folder: Path) -> None:
        """Ask the standby for a checkpoint and rename it to `folder`.

        Blocks for a few seconds at most; raises `CopyUnusable`.
        """
        if silence := _silence(Path(copy.location).parents[2]):
            raise CopyUnusable(silence)
        take_over(Path(copy.location).parents[2], task, store, folder, self.answer_s)


def _silence(root: Path) -> str | None:
    """Return for how long a standby has not written its list of copies, if that is too long; else None."""
    try:
        silent_s = time.time() - (root / COPIES_FILE).stat().st_mtime
    except FileNotFoundError:
        return None
    return f"the standby in {root} has not reported for {silent_s:.0f} s" if silent_s > _SILENT_S else None
