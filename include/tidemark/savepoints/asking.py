"""How a command asks a running instance for a savepoint, and how that answers: two files beside each other.

The command writes `<var_dir>/instances/<app>-<instance>.savepoint.json`; the instance takes it away when it has read it,
and answers in its run file, under `savepoint`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.files import replace_file
from tidemark.instance.run_file import read_run_file
from tidemark.instance.state import InstanceState
from tidemark.local.processes import Identity

ANSWER = "savepoint"
_ENDED = {InstanceState.NOT_RUNNING, InstanceState.ERROR}


class Saving(StrEnum):
    """How far an instance is."""

    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Request:
    """Take a savepoint with this id and copy it to `location`."""

    savepoint_id: str
    location: str


@dataclass(frozen=True)
class Answer:
    """What an instance says of the savepoint it was asked for last.

    `bytes_done` of `bytes_total` were checked, `bytes_copied` of them had to be copied. `held_ms`: how long the stream
    stood still for it.
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
        """For the run file."""
        return asdict(self)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Answer | None:
        """From the content of a run file; None where the instance was never asked."""
        answer = said.get(ANSWER)
        if answer is None:
            return None
        return cls(**{**answer, "state": Saving(answer["state"]), "tasks": tuple(answer["tasks"])})


def request_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Where the request to one instance lies."""
    return var_dir / "instances" / f"{application_id}-{instance}.savepoint.json"


def write_request(path: Path, request: Request) -> None:
    """Put it there in one piece."""
    replace_file(path, json.dumps({"id": request.savepoint_id, "location": request.location}), synced=False)


def take_request(path: Path) -> Request | None:
    """Read a request and take it away; None where there is none, or what is there is none. Raises `OSError`."""
    asked = read_request(path)
    path.unlink(missing_ok=True)
    return asked


def read_request(path: Path) -> Request | None:
    """Read a request and leave it there; None where there is none, or what is there is none. Raises `OSError`."""
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
    """A running instance of an application on this machine, known by its run file."""

    instance: int
    identity: Identity
    run_file: Path

    def said(self) -> Mapping[str, Any] | None:
        """What it says now; None when this very process does not run any more."""
        said = read_run_file(self.run_file)
        if said is None or _identity(said) != self.identity or said.get("state") in _ENDED:
            return None
        return said if self.identity.is_alive() else None


def live_instances(var_dir: Path, application_id: str) -> list[LiveInstance]:
    """All that run, by number."""
    found: list[LiveInstance] = []
    for path in (var_dir / "instances").glob(f"{application_id}-*.json"):
        said = read_run_file(path)
        if said is None or said.get("application_id") != application_id or "instance" not in said:
            continue
        live = LiveInstance(int(said["instance"]), _identity(said), path)
        if live.said() is not None:
            found.append(live)
    return sorted(found, key=lambda live: live.instance)


def _identity(said: Mapping[str, Any]) -> Identity:
    return Identity(int(said["pid"]), float(said["start_time"]))
