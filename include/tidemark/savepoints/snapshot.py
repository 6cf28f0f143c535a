"""Savepoints of a running instance: checkpoints between two batches, copied in the background."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from tidemark.errors import SavepointFailed, TidemarkError
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.upload import CopyCount, LinkedSavepoint, copy_linked, link_task
from tidemark.stores.rocksdb import RocksStore
from tidemark.supervision.live_instances import ANSWER, Answer, Request, Saving, request_path, take_request
from tidemark.supervision.run_file import RunFile
from tidemark.tasks.task import Task
from tidemark.topology.plan import StoreSpec

log = logging.getLogger(__name__)

LINKS_FOLDER = ".savepoints"
_FLUSH_S = 10.0
_STOP_S = 10.0


class SavepointTaker:
    """Takes the savepoints that an instance is asked for, one at a time. An error here never ends the instance."""

    def __init__(
        self,
        application_id: str,
        topology_version: str,
        instance: int,
        var_dir: Path,
        folder: Path,
        run_file: RunFile,
        clock: Callable[[], int],
    ) -> None:
        """Remove what an earlier process left: links in `folder`, which is the instance's own, and requests.

        `clock` returns epoch milliseconds.
        """
        self._application_id = application_id
        self._topology_version = topology_version
        self._request_path = request_path(var_dir, application_id, instance)
        self._links = folder / LINKS_FOLDER
        self._run_file = run_file
        self._clock = clock
        self._asked: Request | None = None
        self._flushed_by_s = 0.0
        self._held_s = 0.0
        self._answer = Answer("", Saving.DONE)
        self._stop = threading.Event()
        self._copier: threading.Thread | None = None
        shutil.rmtree(self._links, ignore_errors=True)
        self._request_path.unlink(missing_ok=True)

    def run(self, tasks: Collection[Task]) -> None:
        """Look for a request between two batches, and do the next step of the present one. Never raises."""
        if self._copier is not None and self._copier.is_alive():
            return
        try:
            if self._asked is None:
                self._begin(tasks)
            elif time.monotonic() >= self._flushed_by_s or not any(s.is_flushing for s in _rocks_stores(tasks)):
                self._take(self._asked, tasks)
        except (TidemarkError, OSError) as error:
            self._fail(str(error))

    def _begin(self, tasks: Collection[Task]) -> None:
        """Flush in the background first, so that the checkpoints have little to write while the stream is paused."""
        self._asked = take_request(self._request_path)
        if self._asked is None:
            return
        self._answer = Answer(self._asked.savepoint_id, Saving.COPYING)
        started = time.monotonic()
        self._flushed_by_s = started + _FLUSH_S
        for store in _rocks_stores(tasks):
            store.begin_flush()
        self._held_s = time.monotonic() - started

    def _take(self, asked: Request, tasks: Collection[Task]) -> None:
        folder = self._links / asked.savepoint_id
        started = time.monotonic()
        linked = LinkedSavepoint(
            asked.savepoint_id,
            self._application_id,
            self._topology_version,
            self._clock(),
            folder,
            tuple(link_task(task.id, stores_by_spec(task), folder) for task in tasks),
        )
        held_ms = round((self._held_s + time.monotonic() - started) * 1000)
        self._asked = None
        names = tuple(str(task.id) for task in tasks)
        log.info("savepoint: id=%s tasks=%s held_ms=%d", asked.savepoint_id, ",".join(names), held_ms)
        self._say(replace(self._answer, tasks=names, bytes_total=linked.size_bytes, held_ms=held_ms), now=True)
        self._copier = threading.Thread(target=self._copy, args=(linked, asked.location), name="savepoint", daemon=True)
        self._copier.start()

    def _copy(self, linked: LinkedSavepoint, location: str) -> None:
        count = CopyCount(lambda: self._progress(count))
        started = time.monotonic()
        try:
            copy_linked(linked, SavepointRepository(location, self._application_id), count)
        except TidemarkError as error:
            self._fail(str(error))
            return
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        self._progress(count)
        log.info(
            "savepoint copied: id=%s bytes=%d copied=%d seconds=%.2f",
            linked.savepoint_id, count.done_bytes, count.copied_bytes, time.monotonic() - started,
        )  # fmt: skip
        self._say(replace(self._answer, state=Saving.DONE), now=True)

    def _progress(self, count: CopyCount) -> None:
        if self._stop.is_set():
            raise SavepointFailed("the instance stopped before everything was copied; take another savepoint")
        self._say(replace(self._answer, bytes_done=count.done_bytes, bytes_copied=count.copied_bytes), now=False)

    def _fail(self, error: str) -> None:
        self._asked = None
        log.warning("savepoint failed: id=%s: %s", self._answer.savepoint_id, error)
        shutil.rmtree(self._links, ignore_errors=True)
        self._say(replace(self._answer, state=Saving.FAILED, error=error), now=True)

    def _say(self, answer: Answer, *, now: bool) -> None:
        self._answer = answer
        self._run_file.update({ANSWER: answer.to_dict()}, now=now)

    def close(self) -> None:
        """Give up what is not copied yet, and delete all links."""
        self._stop.set()
        if self._asked is not None:
            self._fail("the instance stopped before it was taken; take another savepoint")
        if self._copier is not None:
            self._copier.join(_STOP_S)
        shutil.rmtree(self._links, ignore_errors=True)


def stores_by_spec(task: Task) -> dict[StoreSpec, RocksStore | None]:
    """Return a task's stores in the form that `link_task` takes."""
    stores = ((spec, task.stores[spec.name]) for spec in task.subtopology.stores)
    return {spec: store if isinstance(store, RocksStore) else None for spec, store in stores}


def _rocks_stores(tasks: Collection[Task]) -> list[RocksStore]:
    return [store for task in tasks for store in task.stores.values() if isinstance(store, RocksStore)]
