"""Exclusive access to an application's state while it is replaced: all its folders locked, its group empty.

See invariant: commit records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.errors import PreflightFailed, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.kafka.group import members
from tidemark.settings import Settings
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.supervision.hold import holding

_ASK_AGAIN_S = 0.5


def holders(state_dir: Path, application_id: str) -> list[Path]:
    """Return the application's folder of every instance that has state here, `<state_dir>/<instance>/<application_id>`."""
    found = (path for path in state_dir.glob(f"*/{application_id}") if path.parent.name.isdigit() and path.is_dir())
    return sorted(found, key=lambda path: int(path.parent.name))


@contextmanager
def fenced(
    settings: Settings, admin: AdminClient, application_id: str, waiting: Callable[[str], None], continued_by: str = ""
) -> Iterator[list[Path]]:
    """Hold the application and the locks of all its folders, with an empty consumer group, while the block runs.

    The hold prevents the launch of instances (see `tidemark.supervision.hold`); the case of an on-call DAG continues under its
    own hold. Yields the locked folders: those of all instances, instance 0's included, and those of standbys that are not
    running (see invariant: every holder). A running standby keeps its own folder and follows what is written to the
    changelogs. `continued_by` is that of `tidemark.supervision.hold.Hold`.

    Blocks. A stopped instance stays a member until its session ends, so a group with members is waited for that long,
    and `waiting` is called with a line about it. Raises `TaskLocked`, which names the process or the holder of the
    application, or `PreflightFailed`, which names the member.
    """
    state_dir = settings.state_dir
    with ExitStack() as locks:
        locks.enter_context(holding(settings.var_dir, application_id, waiting, continued_by=continued_by))
        # Listed under the hold, so no instance can appear afterwards.
        first = state_dir / "0" / application_id
        held = [first, *(folder for folder in holders(state_dir, application_id) if folder != first)]
        for folder in held:
            try:
                locks.callback(FolderLock(folder).release)
            except TaskLocked as error:
                raise TaskLocked(
                    f"{application_id} is running: {error}; pause its DAG and mark the run failed"
                ) from error
        for folder in sorted(state_dir.glob(f"{STANDBY_PREFIX}*/{application_id}")):
            try:
                locks.callback(FolderLock(folder).release)
            except TaskLocked:
                continue
            held.append(folder)
        if found := await_empty_group(settings, admin, application_id, waiting):
            raise PreflightFailed(
                f"group {application_id} still has members ({', '.join(found)}): stop the application there too; nothing "
                "was changed"
            )
        yield held


def await_empty_group(
    settings: Settings, admin: AdminClient, application_id: str, waiting: Callable[[str], None]
) -> list[str]:
    """Wait until the application's consumer group is empty, and return the members that are still in it; [] if it is empty.

    Blocks. A stopped instance stays a member until its session ends, so it is waited for that long. `waiting` is called
    with a line about the members, again and again. Raises `OutcomeUnknown` if the group's coordinator does not answer.
    """
    deadline = time.monotonic() + (settings.session_timeout_ms + settings.broker_timeout_ms) / 1000
    pause = threading.Event()
    while found := members(settings, admin, application_id):
        if time.monotonic() > deadline:
            break
        waiting(f"waiting for {', '.join(found)} to leave the group (session_timeout_ms)")
        pause.wait(_ASK_AGAIN_S)
    return found
