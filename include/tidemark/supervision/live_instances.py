"""The request of a command to a running instance for a savepoint, and the instance's answer. Both are files.

The command writes `<var_dir>/instances/<app>-<instance>.savepoint.json`. The instance deletes it after reading it, and
answers in its run file, under `savepoint`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.atomic_file import replace_file
from tidemark.processes import Identity
from tidemark.supervision.run_file import RunView

ANSWER = "savepoint"
_TAKEN = ".taken"


class Saving(StrEnum):
    """The progress of one instance with its part of a savepoint."""

    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Request:
    """A request to take a savepoint with this id and copy it to `location`."""

    savepoint_id: str
    location: str


@dataclass(frozen=True)
class Answer:
    """An instance's report about the savepoint that it was asked for last.

    `bytes_done` of `bytes_total` were checked, `bytes_copied` of them had to be copied. `held_ms` is how long the
    stream was paused for it.
    """

    savepoint_id: str
    state: Saving
    tasks: tuple[str, ...] = ()
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_copied: int = 0
    held_ms: int = 0
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as it is written to the run file."""
        return asdict(self)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Answer | None:
        """Read the answer from the content of a run file; None if the instance was never asked."""
        answer = said.get(ANSWER)
        if answer is None:
            return None
        return cls(**{**answer, "state": Saving(answer["state"]), "tasks": tuple(answer["tasks"])})


def request_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Return the path of the request to one instance."""
    return var_dir / "instances" / f"{application_id}-{instance}.savepoint.json"


def write_request(path: Path, request: Request) -> None:
    """Write the request atomically."""
    replace_file(path, json.dumps({"id": request.savepoint_id, "location": request.location}), synced=False)


def take_request(path: Path) -> Request | None:
    """Read a request and delete it. Returns None if there is none, or its content is invalid. Raises `OSError`.

    It is renamed first, so that a request that is written meanwhile is not deleted unread. One that cannot be read, because
    the process has too many files open, is kept.
    """
    taken = path.with_suffix(_TAKEN)
    try:
        path.replace(taken)
    except FileNotFoundError:
        return None
    try:
        asked = read_request(taken)
    except OSError:
        with suppress(FileExistsError):
            path.hardlink_to(taken)
        taken.unlink(missing_ok=True)
        raise
    taken.unlink(missing_ok=True)
    return asked


def read_request(path: Path) -> Request | None:
    """Read a request and leave it. Returns None if there is none, or its content is invalid. Raises `OSError`."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        asked = json.loads(text)
        return Request(str(asked["id"]), str(asked["location"]))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class LiveInstance:
    """A running instance of an application on this machine, found by its run file."""

    instance: int
    identity: Identity
    run_file: Path

    def run(self) -> RunView | None:
        """Return the contents of its run file; None if this very process is no longer running."""
        run = RunView.read(self.run_file)
        return run if run and run.process == self.identity and run.is_running() else None

    def said(self) -> Mapping[str, Any]:
        """Return the values in its run file; none if this very process is no longer running."""
        run = self.run()
        return {} if run is None else run.values


def live_instances(var_dir: Path, application_id: str) -> list[LiveInstance]:
    """Return all running instances, in the order of their numbers."""
    found: list[LiveInstance] = []
    for path in (var_dir / "instances").glob(f"{application_id}-*.json"):
        run = RunView.read(path)
        if run is None or run.values.get("application_id") != application_id or "instance" not in run.values:
            continue
        if run.is_running():
            found.append(LiveInstance(int(run.values["instance"]), run.process, path))
    return sorted(found, key=lambda live: live.instance)
