"""The work of `tidemark savepoint take`: ask every instance, wait for all, and check that the savepoint is complete."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.commit.history import last_commit_records
from tidemark.errors import ApplicationHeld, SavepointFailed, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId
from tidemark.restore.fencing import await_empty_group
from tidemark.savepoints.manifest import SavepointManifest
from tidemark.savepoints.offline import StoppedFolders, format_behind, raise_if_nothing
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.upload import CopyCount, LinkedSavepoint, copy_linked
from tidemark.settings import Settings
from tidemark.supervision.hold import holding, require_not_held
from tidemark.supervision.live_instances import (
    Answer,
    LiveInstance,
    Request,
    Saving,
    live_instances,
    request_path,
    write_request,
)
from tidemark.supervision.savepoint_ids import new_savepoint_id
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_SILENT_S = 120.0
_NOTED_AGAIN_MS = 60_000
_ASKED_AGAIN_S = 1.0
"""Each request pauses the stream for a moment."""
_SESSIONS = 2
"""A task that is moving is waited for that many times `session_timeout_ms`."""


@dataclass(frozen=True)
class Copied:
    """The progress of a savepoint over all instances.

    `total_bytes` is the size, `done_bytes` were checked, and `copied_bytes` of those had to be copied.
    """

    total_bytes: int
    done_bytes: int
    copied_bytes: int


@dataclass(frozen=True)
class Taken:
    """A complete savepoint. `held_ms` is the longest time that an instance was paused for it; 0 if none was running."""

    manifest: SavepointManifest
    copied_bytes: int
    held_ms: int


@dataclass
class _SignOfLife:
    """Notes about once a minute that a savepoint is still being taken, so that `expire` does not give it up."""

    repository: SavepointRepository
    savepoint_id: str
    clock: Callable[[], int]
    noted_ms: int

    def renew(self) -> None:
        """Note it if the last note is a minute old. Blocks. A failure is logged, as the next note may succeed."""
        now_ms = self.clock()
        if now_ms - self.noted_ms < _NOTED_AGAIN_MS:
            return
        self.noted_ms = now_ms
        try:
            self.repository.begin(self.savepoint_id, now_ms)
        except SavepointFailed as error:
            log.warning("failed to note that savepoint %s is still being taken: %s", self.savepoint_id, error)


def command_folder(var_dir: Path, application_id: str) -> Path:
    """Return the folder that a command locks while it takes a savepoint of an application."""
    return var_dir / "savepoint-commands" / application_id


@dataclass(frozen=True)
class SavepointCommand:
    """Takes one savepoint. `tasks` are all tasks of the application; `watch` is called with the progress."""

    plan: TopologyPlan
    settings: Settings
    admin: AdminClient
    tasks: Sequence[TaskId]
    watch: Callable[[Copied], None]
    clock: Callable[[], int]

    def take(self) -> Taken:
        """Take the savepoint. Blocks until it is complete. Asks again for some seconds while no instance holds a task.

        Raises `SavepointFailed`, which names the instance, the tasks that are missing, the instances that run on another
        machine while none runs on this one, or the tasks whose folders on this machine lack the last commit. Raises
        `OutcomeUnknown` if no instance runs and the brokers do not answer.
        """
        repository = SavepointRepository(self.settings.savepoint_location, self.plan.application_id)
        pause = threading.Event()
        copied_bytes = held_ms = 0
        with self._alone():
            asked_until_s = time.monotonic() + _SESSIONS * self.settings.session_timeout_ms / 1000
            while True:
                live = self._idle_instances()
                savepoint_id = new_savepoint_id(self.clock())
                taken_ms = self.clock()
                alive = _SignOfLife(repository, savepoint_id, self.clock, taken_ms)
                if live:
                    repository.begin(savepoint_id, taken_ms)
                    answers = self._ask(live, savepoint_id, alive)
                    copied_bytes += sum(answer.bytes_copied for answer in answers)
                    held_ms = max(held_ms, *(answer.held_ms for answer in answers))
                    if self._lacks_tasks(answers) and time.monotonic() < asked_until_s:
                        log.info("savepoint %s lacks tasks, which may be moving: asking again", savepoint_id)
                        repository.remove(savepoint_id)
                        pause.wait(_ASKED_AGAIN_S)
                        continue
                else:
                    copied_bytes += self._take_stopped(repository, savepoint_id, taken_ms, alive)
                manifest = repository.complete(savepoint_id, self.plan.version, taken_ms, self.tasks)
                return Taken(manifest, copied_bytes, held_ms)

    def _idle_instances(self) -> list[LiveInstance]:
        """Return the running instances. Raises `SavepointFailed` if one still copies, or if none runs and there is a hold."""
        app = self.plan.application_id
        live = live_instances(self.settings.var_dir, app)
        for one in live:
            answer = Answer.of(one.said())
            if answer is not None and answer.state is Saving.COPYING:
                raise SavepointFailed(
                    f"instance {one.instance} of {app} is still copying savepoint {answer.savepoint_id}: wait for it"
                )
        if not live:
            self._require_not_held()
        return live

    def _lacks_tasks(self, answers: Sequence[Answer]) -> bool:
        """Return whether no instance held some task. In a rebalance, one has left its instance and is not restored yet."""
        return not {str(task) for task in self.tasks} <= {task for answer in answers for task in answer.tasks}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of this command, because an instance can keep only one request.

        Links to the state of a stopped application are deleted before and after: those of a command that was killed would keep
        files on the disk, also while the application runs again.
        """
        try:
            lock = FolderLock(command_folder(self.settings.var_dir, self.plan.application_id))
        except TaskLocked as error:
            raise SavepointFailed(
                f"another `tidemark savepoint take` of {self.plan.application_id} is running: wait for it"
            ) from error
        links = StoppedFolders(self.plan, self.settings).links
        with lock:
            shutil.rmtree(links, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(links, ignore_errors=True)

    def _require_not_held(self) -> None:
        try:
            require_not_held(self.settings.var_dir, self.plan.application_id)
        except ApplicationHeld as error:
            raise SavepointFailed(f"no savepoint was taken, because no instance runs and {error}") from error

    def _require_stopped_everywhere(self) -> None:
        """Raise `SavepointFailed` if the application runs on another machine: the folders here are then old copies. Blocks."""
        app = self.plan.application_id
        if found := await_empty_group(self.settings, self.admin, app, log.info):
            raise SavepointFailed(
                f"no savepoint was taken, because no instance of {app} runs on this machine, but its group has members "
                f"({', '.join(found)}): take the savepoint on the machine where they run, or stop the application there"
            )

    def _require_last_commits(self, linked: LinkedSavepoint) -> None:
        """Raise `SavepointFailed` if a task was processed elsewhere since: its folder here is old.

        Blocks. Raises `OutcomeUnknown`.
        """
        app = self.plan.application_id
        records = last_commit_records(
            librdkafka_config(self.settings),
            EndOffsets(self.admin, self.settings.broker_timeout_ms / 1000),
            app,
            [task.task for task in linked.tasks if task.task in self.tasks],
            stalled_after_s=stalled_after(self.settings),
        )
        if behind := format_behind(linked, self.plan, records):
            raise SavepointFailed(
                f"no savepoint was taken, because the folders in {self.settings.state_dir} lack the last commit of "
                f"{', '.join(behind)}: take it on the machine where {app} ran last, or start {app} here first"
            )

    def _take_stopped(
        self, repository: SavepointRepository, savepoint_id: str, taken_ms: int, alive: _SignOfLife
    ) -> int:
        app = self.plan.application_id
        try:
            # Airflow waits for the hold before it launches an instance, which would end for good if it met a folder's lock.
            with holding(self.settings.var_dir, app, log.warning, takes_over=False):
                self._require_stopped_everywhere()
                linked = StoppedFolders(self.plan, self.settings).link(savepoint_id, taken_ms)
                self._require_last_commits(linked)
        except TaskLocked as error:
            raise SavepointFailed(f"no savepoint was taken, because no instance runs and {error}") from error
        raise_if_nothing(linked, self.settings.state_dir)
        # Only now, so that nothing is left in the list of savepoints if there is nothing to save.
        repository.begin(savepoint_id, taken_ms)
        total = linked.size_bytes

        def on_change() -> None:
            alive.renew()
            self.watch(Copied(total, count.done_bytes, count.copied_bytes))

        count = CopyCount(on_change)
        copy_linked(linked, repository, count)
        return count.copied_bytes

    def _ask(self, live: Sequence[LiveInstance], savepoint_id: str, alive: _SignOfLife) -> list[Answer]:
        """Ask all instances, wait until each has copied its part, and return their answers."""
        app = self.plan.application_id
        paths = [request_path(self.settings.var_dir, app, one.instance) for one in live]
        try:
            for path in paths:
                write_request(path, Request(savepoint_id, self.settings.savepoint_location))
            return self._wait(live, savepoint_id, alive)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _wait(self, live: Sequence[LiveInstance], savepoint_id: str, alive: _SignOfLife) -> list[Answer]:
        pause = threading.Event()
        while True:
            alive.renew()
            answers = [self._answer(one, savepoint_id) for one in live]
            said = [answer for answer in answers if answer is not None]
            self.watch(
                Copied(
                    sum(a.bytes_total for a in said), sum(a.bytes_done for a in said), sum(a.bytes_copied for a in said)
                )
            )
            if len(said) == len(live) and all(answer.state is Saving.DONE for answer in said):
                return said
            pause.wait(_LOOK_S)

    def _answer(self, one: LiveInstance, savepoint_id: str) -> Answer | None:
        """Return the answer of an instance; None if it has not begun yet. Raises `SavepointFailed`."""
        who = f"instance {one.instance} of {self.plan.application_id}"
        run = one.run()
        if run is None:
            raise SavepointFailed(
                f"{who} (process {one.identity.pid}) ended before savepoint {savepoint_id} was complete; take another"
            )
        if time.time() - run.written_at > _SILENT_S:
            raise SavepointFailed(
                f"{who} (process {one.identity.pid}) has not updated its run file for {_SILENT_S:.0f} s: see its log"
            )
        answer = Answer.of(run.values)
        if answer is None or answer.savepoint_id != savepoint_id:
            return None
        if answer.state is Saving.FAILED:
            raise SavepointFailed(f"{who}: {answer.error}")
        return answer
