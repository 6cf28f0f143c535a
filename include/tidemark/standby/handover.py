"""Handing over of copies that are still followed, by files in `<state_dir>/standby-<n>/<application>/handover/`.

    <id>.wanted   the request of an instance: `<task> <store>`
    <id>.making   the checkpoint that the standby is making, by hard links
    <id>.ready    the same folder, renamed when it is complete; the instance renames it into its own place

Each step is one rename, so that neither side ever sees an incomplete file or folder. The standby removes what is not
fetched.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.errors import CopyUnusable, TidemarkError
from tidemark.folder_lock import is_locked
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.standby.store_replica import FollowedStore

log = logging.getLogger(__name__)

HANDOVER_FOLDER = "handover"
_WANTED, _MAKING, _READY = ".wanted", ".making", ".ready"
_ASK_AGAIN_S = 0.02
_UNFETCHED_S = 60.0


def take_over(root: Path, task: TaskId, store: str, folder: Path, timeout_s: float) -> None:
    """Ask the standby in `root` for a store, and rename what it provides to `folder`, which must not exist.

    Blocks for at most `timeout_s`. Raises `CopyUnusable` if the standby ends or does not answer.
    """
    box = root / HANDOVER_FOLDER
    asked = uuid.uuid4().hex
    wanted, ready = box / f"{asked}{_WANTED}", box / f"{asked}{_READY}"
    try:
        box.mkdir(exist_ok=True)
        replace_file(wanted, f"{task} {store}", synced=False)
        wait_until(lambda: ready.exists() or not is_locked(root), timeout_s, every_s=_ASK_AGAIN_S)
        folder.parent.mkdir(parents=True, exist_ok=True)
        ready.rename(folder)
    except FileNotFoundError as error:
        raise CopyUnusable(
            f"the standby in {root} did not hand {store} of task {task} over within {timeout_s:.0f} s"
        ) from error
    except OSError as error:
        raise CopyUnusable(f"the standby's copy in {root} cannot be moved to {folder}: {error.strerror}") from error
    finally:
        wanted.unlink(missing_ok=True)


class Handovers:
    """The standby's side of the handover."""

    def __init__(self, root: Path) -> None:
        """Remove what an earlier process left. `root` is the standby's folder of the application."""
        self._box = root / HANDOVER_FOLDER
        self._made_s: dict[Path, float] = {}
        self.close()
        self._box.mkdir(parents=True, exist_ok=True)

    def answer(self, find: Callable[[TaskId, str], FollowedStore | None]) -> None:
        """Provide every copy that is asked for. Blocks for tens of milliseconds per store."""
        for wanted in sorted(self._box.glob(f"*{_WANTED}")):
            try:
                self._give(wanted, find)
            except (TidemarkError, OSError, ValueError) as error:
                log.warning("a copy cannot be handed over: %s", error)
            wanted.unlink(missing_ok=True)
        for folder in [f for f, made_s in self._made_s.items() if time.monotonic() - made_s > _UNFETCHED_S]:
            shutil.rmtree(folder, ignore_errors=True)
            del self._made_s[folder]

    def _give(self, wanted: Path, find: Callable[[TaskId, str], FollowedStore | None]) -> None:
        task, name = wanted.read_text().split(" ", 1)
        store = find(TaskId.parse(task), name)
        if store is None:
            log.warning("store %s of task %s was asked for, but is not followed here", name, task)
            return
        making, ready = wanted.with_suffix(_MAKING), wanted.with_suffix(_READY)
        store.create_checkpoint(making)
        self._made_s[ready] = time.monotonic()
        making.rename(ready)
        log.info("handed over: store=%s changelog=%s at=%d", store.name, store.job.changelog, store.next_offset)

    def close(self) -> None:
        """Remove everything that was not fetched."""
        shutil.rmtree(self._box, ignore_errors=True)
        self._made_s.clear()
