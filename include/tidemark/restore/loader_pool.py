"""Loading of long changelogs in separate processes, because threads of one interpreter wait for each other.

See docs/decisions/0013-restores-in-processes.md. A process ends when its caller does. Until then it holds the caller's
locks on the folder, so nothing else can build where it still writes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path

from tidemark.errors import OutcomeUnknown, TidemarkError
from tidemark.processes import without_airflow
from tidemark.restore.listener import RestoreProgress
from tidemark.restore.loader_process import LoadRequest
from tidemark.restore.restorer import RestoreJob, Restorer, RestoreSuspended
from tidemark.settings import project_root
from tidemark.stores.directory import locks_around

_PROGRAM = "tidemark.restore.loader_process"
_ASK_S = 0.1


def load_apart(
    restorer: Restorer, job: RestoreJob, building: Path, write_buffer_bytes: int, should_continue: Callable[[], bool]
) -> None:
    """Run `Restorer.build_whole` in a process of its own. As many run at once as there are cores. Blocks.

    Raises what `build_whole` raises, and `OutcomeUnknown` if the process ends without a reply.
    """
    load = LoadRequest(restorer.client_config, restorer.stalled_after_s, job, building, write_buffer_bytes)
    with _loaders.one(load, should_continue) as loader:
        loader.follow(load, restorer, should_continue)


class _Loader:
    """One loading process.

    It holds the locks on the folder of its first load, which are those of all folders of the application.
    """

    def __init__(self, building: Path) -> None:
        self._connection, its = Pipe()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(its.fileno())],
                # It does no numeric work that would be worth the start of more threads.
                env={
                    **without_airflow(os.environ),
                    "PYTHONPATH": str(project_root() / "include"),
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdin=subprocess.PIPE,
                pass_fds=[its.fileno(), *locks_around(building)],
                # A signal to the caller's process group is left to the caller to handle.
                start_new_session=True,
            )

    def follow(self, load: LoadRequest, restorer: Restorer, should_continue: Callable[[], bool]) -> None:
        """Send one load to the process, and pass its progress on until it is done. Blocks."""
        try:
            self._connection.send(load)
            self._follow(load.job, restorer, should_continue)
        except (EOFError, ConnectionError) as error:
            raise OutcomeUnknown(
                f"{load.job.changelog}: the process that loaded it ended with {self._process.wait()}; "
                "the next start loads it again"
            ) from error

    def _follow(self, job: RestoreJob, restorer: Restorer, should_continue: Callable[[], bool]) -> None:
        progress: RestoreProgress | None = None
        while True:
            if not should_continue():
                if progress is not None:
                    restorer.listener.on_restore_suspended(progress)
                raise RestoreSuspended(f"{job.changelog} at {progress.next_offset if progress else job.low_offset}")
            if not self._connection.poll(_ASK_S):
                continue
            summary = self._connection.recv()
            if summary is None:
                return
            if isinstance(summary, TidemarkError):
                raise summary
            what, progress = summary
            getattr(restorer.listener, what)(progress)
            restorer.probe("restore-whole")

    def end(self) -> None:
        """End the process at once, whatever it is doing."""
        self._process.kill()
        self._process.communicate()
        self._connection.close()


class _Loaders:
    """A pool of at most as many loading processes as there are cores.

    A process that is done takes a load that is waiting, or ends: starting one takes as long as loading 300 000 records.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._running = self._waiting = 0
        self._idle: list[_Loader] = []

    @contextmanager
    def one(self, load: LoadRequest, should_continue: Callable[[], bool]) -> Iterator[_Loader]:
        """Provide a process for one load, and end it if the load fails. Blocks until one is free."""
        loader = self._idle_one(load, should_continue)
        try:
            loader = loader or _Loader(load.building)
            yield loader
        except BaseException:
            self._leave(loader, is_good=False)
            raise
        self._leave(loader, is_good=True)

    def _idle_one(self, load: LoadRequest, should_continue: Callable[[], bool]) -> _Loader | None:
        """Return a process that is free; None if another one may be started. Blocks."""
        with self._changed:
            self._waiting += 1
            try:
                while not self._idle and self._running == self._most:
                    if not should_continue():
                        raise RestoreSuspended(f"{load.job.changelog} before its first record")
                    self._changed.wait(_ASK_S)
                if self._idle:
                    return self._idle.pop()
                self._running += 1
                return None
            finally:
                self._waiting -= 1
                self._end_idle()

    def _leave(self, loader: _Loader | None, *, is_good: bool) -> None:
        with self._changed:
            if loader is not None and is_good:
                self._idle.append(loader)
            else:
                self._running -= 1
                if loader is not None:
                    loader.end()
            self._end_idle()
            self._changed.notify()

    def _end_idle(self) -> None:
        """End the idle processes that no load is waiting for."""
        while len(self._idle) > self._waiting:
            self._idle.pop().end()
            self._running -= 1


_loaders = _Loaders(os.cpu_count() or 1)
