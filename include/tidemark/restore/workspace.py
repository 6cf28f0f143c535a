"""Where a restore keeps its plan, what it builds, and what it replaced: `<state_dir>/.restores/<app>/<restore id>/`.

`plan.json` is the plan; `progress.json` says how far it is, rewritten atomically before and after each step, so that a run
that was killed goes on where it was. `built/<task>` is swapped in; `previous/<instance>/<task>` is what it replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused, TaskLocked
from tidemark.files import replace_file
from tidemark.restore.fence import holders
from tidemark.restore.plans import RestorePlan
from tidemark.restore.verify import Difference, Verdict
from tidemark.stores.directory import FolderLock

RESTORES_FOLDER = ".restores"


class RestoreState(StrEnum):
    """How far a restore is."""

    PLANNED = "planned"
    BUILDING = "building"
    SWAPPING = "swapping"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True)
class Move:
    """One folder that is replaced. Both paths are relative to the state folder; `previous` is empty where none was."""

    task: str
    live: str
    previous: str


@dataclass(frozen=True)
class RestoreProgress:
    """`verdicts` by `<task>/<store>`: what is built and verified. `moves` is fixed before the first folder moves."""

    state: RestoreState
    message: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    verdicts: Mapping[str, Verdict] | None = None
    moves: tuple[Move, ...] = ()


class Workspace:
    """One restore on disk. Its lock is held by the process that runs, aborts or rolls it back."""

    def __init__(self, state_dir: Path, application_id: str, restore_id: str, kept_in: str = RESTORES_FOLDER) -> None:
        self.state_dir = state_dir
        self.application_id = application_id
        self.folder = state_dir / kept_in / application_id / restore_id

    @property
    def built(self) -> Path:
        """Task folders in the making."""
        return self.folder / "built"

    @property
    def previous(self) -> Path:
        """Task folders that were replaced."""
        return self.folder / "previous"

    @property
    def abort_file(self) -> Path:
        """Its presence asks the run to end."""
        return self.folder / "abort"

    def create(self, plan: RestorePlan) -> None:
        """Store the plan."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "plan.json", plan.to_json(), synced=True)
        self.write(RestoreProgress(RestoreState.PLANNED))

    def plan(self) -> RestorePlan:
        """The stored plan. Raises `StartRefused`."""
        try:
            return RestorePlan.from_json((self.folder / "plan.json").read_text())
        except FileNotFoundError as error:
            raise StartRefused(
                f"there is no restore {self.folder.name}; `tidemark restore status` lists them"
            ) from error

    def progress(self) -> RestoreProgress:
        """How far it is."""
        try:
            body = json.loads((self.folder / "progress.json").read_text())
        except FileNotFoundError:
            return RestoreProgress(RestoreState.PLANNED)
        body["state"] = RestoreState(body["state"])
        body["moves"] = tuple(Move(**move) for move in body["moves"])
        if body["verdicts"] is not None:
            body["verdicts"] = {name: _verdict(found) for name, found in body["verdicts"].items()}
        return RestoreProgress(**body)

    def write(self, progress: RestoreProgress) -> None:
        """Replace the progress."""
        replace_file(self.folder / "progress.json", json.dumps(asdict(progress), indent=1), synced=True)

    def lock(self) -> FolderLock:
        """For the process that works on it. Raises `TaskLocked` naming that process."""
        try:
            return FolderLock(self.folder)
        except TaskLocked as error:
            raise TaskLocked(f"restore {self.folder.name} is being worked on: {error}") from error

    def abort(self) -> str:
        """Ask the process that works on it to end, or clean up after one that is gone; says which. Raises `StartRefused`."""
        progress = self.progress()
        if progress.state in (RestoreState.DONE, RestoreState.SWAPPING, RestoreState.ROLLING_BACK):
            raise StartRefused(
                f"restore {self.folder.name} is {progress.state}: it cannot be aborted; `tidemark restore rollback` undoes it"
            )
        try:
            lock = self.lock()
        except TaskLocked:
            self.abort_file.touch()
            return f"restore {self.folder.name} was asked to end"
        with lock:
            self.drop_built()
            self.finish(progress, RestoreState.ABORTED, "aborted; the old state is in place")
        return f"restore {self.folder.name} aborted; the old state is in place"

    def move_of(self, task: str) -> Move:
        """The folder that holds the task now, or instance 0's."""
        held = [folder / task for folder in holders(self.state_dir, self.application_id)]
        live = next((path for path in held if path.exists()), None)
        if live is None:
            live = self.state_dir / "0" / self.application_id / task
            return Move(task, str(live.relative_to(self.state_dir)), "")
        previous = self.previous / live.parent.parent.name / task
        return Move(task, str(live.relative_to(self.state_dir)), str(previous.relative_to(self.state_dir)))

    def swap(self, moves: tuple[Move, ...], probe: Callable[[str], None]) -> None:
        """Each old task folder aside, each new one in its place. May be repeated after a crash in the middle."""
        for move in moves:
            live, built = self.state_dir / move.live, self.built / move.task
            if not built.exists():
                continue
            previous = self.state_dir / move.previous
            if move.previous and live.exists() and not previous.exists():
                _move(live, previous)
            # An instance that ran between a crash and its repair has made a folder anew; Kafka holds what is in it.
            shutil.rmtree(live, ignore_errors=True)
            probe("swap-between")
            _move(built, live)
            probe("swap-one")

    def swap_back(self, moves: tuple[Move, ...]) -> None:
        """Each new folder away, each old one back. May be repeated after a crash in the middle."""
        for move in moves:
            live, previous = self.state_dir / move.live, self.state_dir / move.previous
            if move.previous and previous.exists():
                shutil.rmtree(live, ignore_errors=True)
                _move(previous, live)
            elif not move.previous:
                shutil.rmtree(live, ignore_errors=True)

    def drop_built(self) -> None:
        """Give what was built back to the disk."""
        shutil.rmtree(self.built, ignore_errors=True)

    def finish(self, progress: RestoreProgress, state: RestoreState, message: str = "") -> RestoreProgress:
        """Write a last state."""
        done = replace(progress, state=state, message=message, ended_ms=wall_clock_ms())
        self.write(done)
        self.abort_file.unlink(missing_ok=True)
        return done


def new_id(at: datetime | None = None) -> str:
    """Of a restore, a rewind or a drill: a time in UTC, now unless given, so that names sort by it."""
    return (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S%fZ")


def workspaces(state_dir: Path, application_id: str) -> list[Workspace]:
    """All restores of an application, the newest first."""
    folder = state_dir / RESTORES_FOLDER / application_id
    found = sorted((path.name for path in folder.glob("*") if (path / "plan.json").exists()), reverse=True)
    return [Workspace(state_dir, application_id, name) for name in found]


def _verdict(body: dict[str, object]) -> Verdict:
    examples = tuple(Difference(**one) for one in body.pop("examples"))  # type: ignore[attr-defined]
    return Verdict(**body, examples=examples)  # type: ignore[arg-type]


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
