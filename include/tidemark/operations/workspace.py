"""The folder in which a restore keeps its plan and the state that it builds and replaces.

It is `<state_dir>/.restores/<app>/<restore id>/`. `plan.json` is the plan. `progress.json` is rewritten atomically
before and after each step, so that a run that was killed continues where it stopped. `built/<unit>` is swapped in;
`previous/<holder>/<unit>` is what it replaced, and `aside/<holder>/<unit>` what a rollback takes out, until the
replaced folders are back. A unit is what is replaced as one: the folder of a task, or of one store if single stores are
restored.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.names import TaskId
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.restore.verify import KeyMismatch, StoreVerification
from tidemark.stores.directory import STORES_FOLDER

RESTORES_FOLDER = ".restores"
_ID = re.compile(r"\d{8}T\d{12}Z", re.ASCII)


class RestoreState(StrEnum):
    """The state of a restore."""

    PLANNED = "planned"
    BUILDING = "building"
    SWAPPING = "swapping"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"


BEGUN_TO_SWAP = frozenset({RestoreState.SWAPPING, RestoreState.ROLLING_BACK})
"""The states in which a part of the folders may be replaced."""
UNFINISHED = BEGUN_TO_SWAP | {RestoreState.BUILDING}
"""The states in which a killed restore leaves work that only a command completes or ends."""


@dataclass(frozen=True)
class Move:
    """One folder that is replaced by a built one, or removed if `takes_built` is false.

    `unit` is the path of the replaced folder in a holder's folder of the application. `live` and `previous` are
    relative to the state folder; `previous` is empty if there was no folder.
    """

    unit: str
    live: str
    previous: str
    takes_built: bool


@dataclass(frozen=True)
class WorkspaceProgress:
    """The progress of a restore. `verdicts`, by `<task>/<store>`, are those of the stores that are built and verified.

    `moves` is fixed before the first folder is moved, `aside` before a rollback moves one.
    """

    state: RestoreState
    message: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    verdicts: Mapping[str, StoreVerification] | None = None
    moves: tuple[Move, ...] = ()
    aside: tuple[Move, ...] = ()


class Workspace:
    """One restore on disk. Its lock is held by the process that runs, aborts or rolls it back."""

    def __init__(self, state_dir: Path, application_id: str, restore_id: str, kept_in: str = RESTORES_FOLDER) -> None:
        """Refer to the workspace of an id, which need not exist.

        The id becomes a path, so this raises `StartRefused` for text that `new_id` cannot have made.
        """
        if not is_id(restore_id):
            raise StartRefused(
                f"{restore_id!r} is not the id of a restore, which looks like 20261122T031500000000Z: take one from "
                "`tidemark restore status NAME`, or make a plan with `tidemark restore plan NAME`"
            )
        self.state_dir = state_dir
        self.application_id = application_id
        self.folder = state_dir / kept_in / application_id / restore_id

    @property
    def built(self) -> Path:
        """The folders that are being built."""
        return self.folder / "built"

    @property
    def previous(self) -> Path:
        """The folders that were replaced."""
        return self.folder / "previous"

    @property
    def abort_file(self) -> Path:
        """A file whose presence asks the run to end."""
        return self.folder / "abort"

    @property
    def set_aside(self) -> Path:
        """The folders that a rollback takes out."""
        return self.folder / "aside"

    def create(self, plan: RestorePlan) -> None:
        """Store the plan once; a restore that was begun keeps its progress.

        Raises `StartRefused` if the workspace has another plan, or cannot be written.
        """
        if (self.folder / "plan.json").exists():
            if self.plan() != plan:
                raise StartRefused(
                    f"restore {self.folder.name} was begun with another plan: continue it with `--resume "
                    f"{self.folder.name}`, or make a new plan with `tidemark restore plan NAME`"
                )
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write(WorkspaceProgress(RestoreState.PLANNED))
            # Written last, because a folder without a plan is no workspace.
            replace_file(self.folder / "plan.json", plan.to_json(), synced=True)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise StartRefused(
                f"cannot write {self.folder}: {error.strerror}; nothing was changed; free disk space and plan again"
            ) from error

    def plan(self) -> RestorePlan:
        """Return the stored plan. Raises `StartRefused`."""
        try:
            return RestorePlan.from_json((self.folder / "plan.json").read_text())
        except FileNotFoundError as error:
            raise StartRefused(
                f"there is no restore {self.folder.name}; `tidemark restore status NAME` lists them"
            ) from error

    def progress(self) -> WorkspaceProgress:
        """Return the stored progress."""
        try:
            body = json.loads((self.folder / "progress.json").read_text())
        except FileNotFoundError:
            return WorkspaceProgress(RestoreState.PLANNED)
        body["state"] = RestoreState(body["state"])
        body["moves"] = tuple(Move(**move) for move in body["moves"])
        body["aside"] = tuple(Move(**move) for move in body["aside"])
        if body["verdicts"] is not None:
            body["verdicts"] = {name: _verdict(found) for name, found in body["verdicts"].items()}
        return WorkspaceProgress(**body)

    def write(self, progress: WorkspaceProgress) -> None:
        """Replace the progress. Raises `OSError`, with the earlier one in place."""
        replace_file(self.folder / "progress.json", json.dumps(asdict(progress), indent=1), synced=True)

    def keep_differences(self, name: str, differences: str) -> Path:
        """Write the keys in which a built store, `task/store`, differs from its changelog. Returns the file."""
        path = self.folder / "differences" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, differences, synced=False)
        return path

    def lock(self) -> FolderLock:
        """Lock the workspace for the process that works on it. Raises `TaskLocked`, which names that process."""
        try:
            return FolderLock(self.folder)
        except TaskLocked as error:
            raise TaskLocked(f"restore {self.folder.name} is in use: {error}") from error

    def abort(self) -> str:
        """Ask the process that works on it to end, or clean up if that process is dead. Returns which, as text.

        Raises `StartRefused`.
        """
        progress = self.progress()
        if progress.state in (RestoreState.DONE, RestoreState.SWAPPING, RestoreState.ROLLING_BACK):
            raise StartRefused(
                f"restore {self.folder.name} is {progress.state}: it cannot be aborted; `tidemark restore rollback NAME "
                f"{self.folder.name}` undoes it"
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

    def require_no_other_begun(self, topology: str) -> None:
        """Raise `StartRefused` if another restore of the application has begun to swap.

        Its folders are the only ones of some tasks, and this one would replace or delete them.
        """
        for other in unfinished(self.state_dir, self.application_id, but=self.folder.name):
            if (state := other.progress().state) in BEGUN_TO_SWAP:
                raise StartRefused(f"restore {other.folder.name} is {state}: {other.remedy(topology)}")

    def remedy(self, topology: str) -> str:
        """Return the commands that complete or end a restore that was left unfinished, with its id."""
        name, state = self.folder.name, self.progress().state
        if state is RestoreState.ROLLING_BACK:
            return f"complete it with `tidemark restore rollback {topology} {name}`"
        command = "rollback" if state in BEGUN_TO_SWAP else "abort"
        return (
            f"finish it with `tidemark restore run {topology} --resume {name}`, or give it up with `tidemark restore {command} "
            f"{topology} {name}`"
        )

    def moves_of(self, unit: str, held: Sequence[Path], owner: int | None) -> tuple[Move, ...]:
        """Return a move for every folder in `held` that has the unit: one takes what was built, the others are removed.

        `held` are folders of the application by holder, at least one of an instance. What was built goes to the
        instance that committed last (`owner`) if it has the task, otherwise to the first instance that has it,
        otherwise to any instance. A single store goes where the other stores of its task are, even to a standby's
        folder. See invariant: every holder.
        """
        task = str(task_of(unit))
        having = [folder for folder in held if (folder / task).exists()]
        instances = [folder for folder in held if folder.parent.name.isdigit()]
        places = [folder for folder in instances if folder in having] or (having if unit != task else []) or instances
        place = next((folder for folder in places if folder.parent.name == str(owner)), places[0])
        others = [folder for folder in having if folder != place and (folder / unit).exists()]
        return (
            self._move_of(unit, place, takes_built=True),
            *(self._move_of(unit, folder, takes_built=False) for folder in others),
        )

    def _move_of(self, unit: str, holder: Path, *, takes_built: bool) -> Move:
        live = holder / unit
        previous = self._relative(self.previous / holder.parent.name / unit) if live.exists() else ""
        return Move(unit, self._relative(live), previous, takes_built)

    def with_their_tasks(self, moves: Sequence[Move], held: Sequence[Path]) -> tuple[Move, ...]:
        """Return the moves, those of single stores with the folder in `held` that has their task now, if it was taken over."""
        return tuple(self._with_its_task(move, held) for move in moves)

    def _with_its_task(self, move: Move, held: Sequence[Path]) -> Move:
        task = str(task_of(move.unit))
        if move.unit == task or not move.takes_built or self._task_folder(move).exists():
            return move
        folder = next((folder for folder in held if (folder / task).exists()), None)
        return move if folder is None else replace(move, live=self._relative(folder / move.unit))

    def _task_folder(self, move: Move) -> Path:
        """Return the live folder of the task that a move belongs to."""
        return self.state_dir / Path(move.live).parents[len(Path(move.unit).parts) - 1] / str(task_of(move.unit))

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.state_dir))

    def swap(self, moves: Sequence[Move], probe: Callable[[str], None]) -> None:
        """Move each old folder aside and each new one in its place. May be repeated after a crash in the middle."""
        for move in moves:
            live, built = self.state_dir / move.live, self.built / move.unit
            if move.takes_built and not built.exists():
                continue
            if self._previous_of(move) is None:
                if live.exists() and move.previous:
                    _move(live, self.state_dir / move.previous)
            elif not move.takes_built:
                continue  # Removed before: what is there now was created or taken over since, and is what Kafka has.
            # An instance that ran between a crash and this repetition may have created the folder again; Kafka has its
            # contents.
            shutil.rmtree(live, ignore_errors=True)
            if move.takes_built:
                probe("swap-between")
                _move(built, live)
            elif live.parent.name == STORES_FOLDER:
                # A task folder without stores would keep its holder from taking over the folder that has them.
                with suppress(OSError):
                    live.parent.rmdir()
            probe("swap-one")

    def has_moved(self, moves: Sequence[Move]) -> bool:
        """Return whether a swap has moved at least one folder."""
        return any(
            self._previous_of(m) is not None or (m.takes_built and not (self.built / m.unit).exists()) for m in moves
        )

    def lost(self, moves: Sequence[Move]) -> list[Move]:
        """Return the swapped moves whose replaced folder no longer exists, so that it cannot be put back."""
        return [
            m
            for m in moves
            if m.takes_built and m.previous and self._previous_of(m) is None and not (self.built / m.unit).exists()
        ]

    def replaced(self, moves: Sequence[Move]) -> set[str]:
        """Return the units of which a replaced folder is kept."""
        return {move.unit for move in moves if self._previous_of(move) is not None}

    def kept_forward(self, moves: Sequence[Move]) -> list[str]:
        """Return the units that a rollback keeps, because they replaced nothing and no other folder of them exists."""
        swapped = {m.unit for m in moves if m.takes_built and not (self.built / m.unit).exists()}
        return sorted(swapped - self.replaced(moves))

    def moves_aside(self, moves: Sequence[Move], held: Sequence[Path]) -> tuple[Move, ...]:
        """Return what a rollback takes out: every folder of a unit that is put back, unless it still is the old one."""
        untouched = {m.live for m in moves if not m.takes_built and self._previous_of(m) is None}
        return tuple(
            Move(unit, live, self._relative(self.set_aside / folder.parent.name / unit), takes_built=False)
            for unit in sorted(self.replaced(moves))
            for folder in held
            for live in [self._relative(folder / unit)]
            if (folder / unit).exists() and live not in untouched
        )

    def swap_back(self, moves: Sequence[Move], aside: Sequence[Move]) -> None:
        """Move each new folder aside and each old one back. A new folder that replaced nothing stays.

        May be repeated until what was moved aside is deleted, which must happen only after the progress says that it is
        done.
        """
        for move in aside:
            live, kept = self.state_dir / move.live, self.state_dir / move.previous
            if live.exists() and not kept.exists():
                _move(live, kept)
        places = {move.live for move in moves if move.takes_built}
        for move in moves:
            previous = self._previous_of(move)
            if not move.takes_built and (move.live in places or not self._has_place(move)):
                continue  # An instance that ran since has taken the task over: a stale store has no place any more.
            if previous is not None:
                # An instance that ran after a crash may have created it again; Kafka has its contents.
                shutil.rmtree(self.state_dir / move.live, ignore_errors=True)
                _move(previous, self.state_dir / move.live)

    def _has_place(self, move: Move) -> bool:
        """Whether the folder can be put back without creating a task folder that holds nothing else."""
        return move.unit == str(task_of(move.unit)) or self._task_folder(move).exists()

    def _previous_of(self, move: Move) -> Path | None:
        """Return the folder that was replaced, if it is kept."""
        previous = self.state_dir / move.previous
        return previous if move.previous and previous.exists() else None

    def drop_built(self) -> None:
        """Delete what was built, and what a rollback took out."""
        shutil.rmtree(self.built, ignore_errors=True)
        shutil.rmtree(self.set_aside, ignore_errors=True)

    def finish(self, progress: WorkspaceProgress, state: RestoreState, message: str = "") -> WorkspaceProgress:
        """Write a final state. Returns the progress."""
        done = replace(progress, state=state, message=message, ended_ms=wall_clock_ms())
        self.write(done)
        self.abort_file.unlink(missing_ok=True)
        return done


def new_id(at: datetime | None = None) -> str:
    """Return a new id of a restore, a rewind or a drill: a time in UTC, by default now, so that ids sort by it."""
    return (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S%fZ")


def task_of(unit: str) -> TaskId:
    """Return the task that a unit is or belongs to."""
    return TaskId.parse(Path(unit).parts[0])


def is_id(text: str) -> bool:
    """Whether the text is an id as `new_id` makes them."""
    return _ID.fullmatch(text) is not None


def workspaces(state_dir: Path, application_id: str) -> list[Workspace]:
    """Return all restores of an application, the newest first."""
    folder = state_dir / RESTORES_FOLDER / application_id
    known = (path.name for path in folder.glob("*") if is_id(path.name) and (path / "plan.json").exists())
    return [Workspace(state_dir, application_id, name) for name in sorted(known, reverse=True)]


def last_swapped(state_dir: Path, application_id: str) -> Workspace | None:
    """Return the restore that has replaced folders last; None if none has.

    One that has begun to swap comes first. One that was rolled back counts, at the time when that ended.
    """
    found = [(one, one.progress()) for one in workspaces(state_dir, application_id)]
    begun = [one for one, progress in found if progress.state in BEGUN_TO_SWAP]
    ended = [
        (progress.ended_ms, one.folder.name, one)
        for one, progress in found
        if progress.state in (RestoreState.DONE, RestoreState.ROLLED_BACK)
    ]
    return begun[0] if begun else max(ended)[-1] if ended else None


def unfinished(state_dir: Path, application_id: str, but: str | None = None) -> list[Workspace]:
    """Return the unfinished restores of an application, the newest first, without the one with the id `but`."""
    found = workspaces(state_dir, application_id)
    return [one for one in found if one.folder.name != but and one.progress().state in UNFINISHED]


def unfinished_restore(state_dir: Path, application_id: str, topology: str, but: str | None = None) -> str | None:
    """Return which restore is unfinished and the commands that end it; None if there is none without the id `but`."""
    for workspace in unfinished(state_dir, application_id, but):
        name, state = workspace.folder.name, workspace.progress().state
        return f"restore {name} of {application_id} is {state}: {workspace.remedy(topology)}"
    return None


def _verdict(body: dict[str, object]) -> StoreVerification:
    examples = tuple(KeyMismatch(**one) for one in body.pop("examples"))  # type: ignore[attr-defined]
    return StoreVerification(**body, examples=examples)  # type: ignore[arg-type]


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
