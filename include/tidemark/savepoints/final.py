"""An instance's part of the last savepoint that a stop asks for, which takes a bounded time.

The stop's part is in `supervision/final_savepoint_request.py`.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tidemark.errors import SavepointFailed, TidemarkError
from tidemark.names import TaskId
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.snapshot import stores_by_spec
from tidemark.savepoints.upload import CopyCount, LinkedSavepoint, copy_linked, link_task
from tidemark.supervision.live_instances import Request, read_request
from tidemark.tasks.task import Task

log = logging.getLogger(__name__)


class LastSavepoint:
    """An instance's part of the savepoint that its stop asks for."""

    def __init__(
        self,
        application_id: str,
        topology_version: str,
        tasks: Sequence[TaskId],
        request: Path,
        links: Path,
        timeout_s: float,
        clock: Callable[[], int],
    ) -> None:
        """Remove a request that an earlier process left. `tasks` are all tasks of the application.

        `links` is a folder of the instance beside its stores, which nothing else uses when the savepoint is taken;
        `clock` returns epoch milliseconds.
        """
        self._application_id = application_id
        self._topology_version = topology_version
        self._tasks = tasks
        self._request = request
        self._links = links
        self._timeout_s = timeout_s
        self._clock = clock
        self._is_given_up = threading.Event()
        request.unlink(missing_ok=True)

    def take(self, held: Collection[Task]) -> None:
        """Take a savepoint of the tasks held, if a stop asks for one. Their last batch must be committed and written.

        Blocks for at most `timeout_s`, plus the time of the checkpoints. Never raises: an error is logged, and the stop
        continues.
        """
        started = time.monotonic()
        try:
            asked = read_request(self._request)
        except OSError as error:
            log.warning("no last savepoint: %s; the stop continues", error)
            return
        if asked is None or self._timeout_s <= 0:
            return
        try:
            linked = self._link(asked.savepoint_id, held)
        except (TidemarkError, OSError) as error:
            self._say_failed(asked, str(error))
            return
        # A daemon thread, because a location that does not answer must not keep the process alive.
        copier = threading.Thread(target=self._copy, args=(asked, linked), name="last savepoint", daemon=True)
        copier.start()
        copier.join(max(0.0, started + self._timeout_s - time.monotonic()))
        if copier.is_alive():
            self._is_given_up.set()
            self._say_failed(
                asked,
                f"{asked.location} has not accepted it within {self._timeout_s:g} s (last_savepoint_timeout_ms): it may be "
                "slow or unreachable",
            )
        shutil.rmtree(self._links, ignore_errors=True)

    def _link(self, savepoint_id: str, held: Collection[Task]) -> LinkedSavepoint:
        folder = self._links / savepoint_id
        tasks = tuple(link_task(task.id, stores_by_spec(task), folder) for task in held)
        return LinkedSavepoint(savepoint_id, self._application_id, self._topology_version, self._clock(), folder, tasks)

    def _copy(self, asked: Request, linked: LinkedSavepoint) -> None:
        count = CopyCount(self._go_on)
        started = time.monotonic()
        try:
            repository = SavepointRepository(asked.location, self._application_id)
            repository.begin(asked.savepoint_id, self._clock())
            copy_linked(linked, repository, count)
            is_whole = self._complete(linked, repository)
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own, and the stop continues
            if not self._is_given_up.is_set():
                self._say_failed(asked, str(error))
            return
        log.info(
            "last savepoint: id=%s tasks=%s whole=%s bytes=%d copied=%d seconds=%.2f",
            asked.savepoint_id, ",".join(str(task.task) for task in linked.tasks), "yes" if is_whole else "not yet",
            count.done_bytes, count.copied_bytes, time.monotonic() - started,
        )  # fmt: skip

    def _complete(self, linked: LinkedSavepoint, repository: SavepointRepository) -> bool:
        """Write the manifest if every task is there. Returns whether it was; other instances may still be copying theirs."""
        there = set(repository.savepoint(linked.savepoint_id).tasks)
        if not {str(task) for task in self._tasks} <= there:
            return False
        self._go_on()
        repository.complete(linked.savepoint_id, self._topology_version, linked.taken_ms, self._tasks)
        return True

    def _go_on(self) -> None:
        if self._is_given_up.is_set():
            raise SavepointFailed("given up")

    def _say_failed(self, asked: Request, why: str) -> None:
        log.warning("no last savepoint: id=%s: %s; the stop continues", asked.savepoint_id, why)
