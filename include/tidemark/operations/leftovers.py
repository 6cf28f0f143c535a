"""Finding leftovers: files that applications left on this disk and that no process uses any more. Reads the disk only.

Killed commands leave holds and half-built stores, changed assignments leave task folders, and restores keep what they
replaced. `tidemark status` lists all of it; `tidemark.operations.clean` decides what is safe to remove.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.errors import ApplicationIdTaken, InvalidSettings, TaskCorrupted, TidemarkError
from tidemark.folder_lock import is_locked
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import brokers_answer, short_timeout_s
from tidemark.names import DRILLS_FOLDER, TaskId
from tidemark.operations.change.repaired_stores import REPAIRS_FOLDER
from tidemark.operations.change.rescale import RESCALES_FOLDER
from tidemark.operations.change.reset import RESETS_FOLDER
from tidemark.operations.change.upgrade import CHANGES_FOLDER
from tidemark.operations.context import OperationContext
from tidemark.operations.rewind.rewind import REWINDS_FOLDER
from tidemark.operations.savepoint import command_folder
from tidemark.operations.workspace import RESTORES_FOLDER, UNFINISHED, RestoreState, Workspace, is_id, workspaces
from tidemark.restore.fencing import holders
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.savepoints.offline import LINKS_FOLDER
from tidemark.settings import Settings
from tidemark.store_sizes import folder_bytes
from tidemark.stores.directory import CORRUPT_STORE, RESTORING_STORE, STANDBY_PREFIX, STORES_FOLDER
from tidemark.supervision.hold import hold_path, read_hold, stale_because
from tidemark.temporary_folder import TEMPORARY_FOLDER, abandoned_folders, application_of
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load_all

log = logging.getLogger(__name__)

_ANSWER_S = 1.0
REMOVED_FOLDER = ".removed"
_CHANGES = (RESETS_FOLDER, RESCALES_FOLDER, CHANGES_FOLDER, REPAIRS_FOLDER)
_BESIDE_HOLDERS = (RESTORES_FOLDER, REWINDS_FOLDER, DRILLS_FOLDER, LINKS_FOLDER, REMOVED_FOLDER, *_CHANGES)
"""Folders of the state folder that have one of each application."""


class LeftoverKind(StrEnum):
    """The kind of a leftover, as tables show it."""

    STALE_HOLD = "stale hold"
    CORRUPT = "corrupt store"
    HALF_BUILT = "half-built store"
    STALE_TASK = "stale task folder"
    GONE_TASK = "folder of a task that is gone"
    GONE_APPLICATION = "folder of an application that is gone"
    UNFINISHED = "unfinished restore"
    BUILT = "built by a command that ended"
    PREVIOUS = "replaced state"
    REMOVED = "taken out by `tidemark clean run`"
    TEMPORARY = "temporary files"


@dataclass(frozen=True)
class Leftover:
    """One file or folder. `why` names what left it; `since_ms` is when it was last written.

    `holder` is the folder of an instance or standby in which it lies; None if it lies elsewhere.
    """

    kind: LeftoverKind
    application_id: str
    path: Path
    bytes: int
    since_ms: int
    why: str
    holder: Path | None = None
    task: TaskId | None = None
    store: str | None = None


Keeper = Callable[[TaskId, Sequence[Path]], Path | None]
"""Chooses which of several instances' folders of a task is not stale; returns None if that is unknown."""


@dataclass(frozen=True)
class KnownApplications:
    """An application's topology and current tasks. `tasks` is None if Kafka was not asked."""

    application_id: str
    plan: TopologyPlan
    tasks: Collection[TaskId] | None


def applications(state_dir: Path) -> list[str]:
    """Return the ids of the applications that have a folder here: of an instance, a standby, a command or a job."""
    folders = [path for path in state_dir.glob("*/*") if path.is_dir()]
    found = {path.name for path in folders if _is_holder(path.parent.name) or path.parent.name in _BESIDE_HOLDERS}
    return sorted(found | {application_of(path.name) for path in folders if path.parent.name == TEMPORARY_FOLDER})


def find_leftovers(
    settings: Settings, known: KnownApplications, keeper: Keeper, *, is_held: bool, own: Collection[Path] = ()
) -> list[Leftover]:
    """Return everything that an application has left here, whether or not it can be removed.

    With `is_held`, half-done work belongs to the holder of the application and is not listed. Half-built stores in a folder
    that a process has locked are not listed either, unless the folder is in `own`.
    """
    state_dir, app = settings.state_dir, known.application_id
    found = [*_hold(settings.var_dir, app), *_task_folders(state_dir, known, keeper, own)]
    beside = [
        *_restores(state_dir, app),
        *_rewinds(state_dir, app),
        *_changes(state_dir, app),
        *_drills(state_dir, app),
        *_savepoints(settings, app),
    ]
    found += [
        _leftover(LeftoverKind.TEMPORARY, app, path, f"{path.parent.name} was killed")
        for folders in _temporary(state_dir, app)
        for path in abandoned_folders(folders)
    ]
    beside += [
        _leftover(LeftoverKind.REMOVED, app, path, "a `tidemark clean run` was killed while removing it")
        for path in sorted((state_dir / REMOVED_FOLDER / app).glob("*"))
    ]
    return found + [each for each in beside if each.kind is LeftoverKind.PREVIOUS or not is_held]


def is_held(var_dir: Path, application_id: str) -> bool:
    """Return whether the application has a hold that is not stale."""
    hold = read_hold(var_dir, application_id)
    return hold is not None and stale_because(var_dir, application_id, hold) is None


def all_leftovers(settings: Settings) -> list[Leftover]:
    """Return the leftovers of every application with state here; deployed ones are found by their topology modules.

    Stale task folders are recognised by the batches that their stores hold. Kafka is asked only which tasks exist, and for
    one second at most.
    """
    deployed: dict[str, TopologyPlan] = {}
    is_whole = True
    for loaded in load_all().values():
        if isinstance(loaded, ApplicationIdTaken):
            continue  # The module that has the application is in the list, too.
        if isinstance(loaded, Exception):
            log.warning("leftovers of a topology that cannot be loaded are not shown: %s", loaded)
            is_whole = False
        else:
            deployed[loaded.application_id] = loaded.plan()
    here = applications(settings.state_dir)
    # Without an answer, the tasks are unknown and none is reported as gone.
    has_answer = any(app in here for app in deployed) and _brokers_answer(settings)
    found: list[Leftover] = []
    for app, plan in deployed.items():
        known = KnownApplications(app, plan, _tasks_of(plan, settings) if has_answer and app in here else None)
        found += find_leftovers(settings, known, furthest, is_held=is_held(settings.var_dir, app))
    for app in here:
        if app not in deployed and is_whole:
            found += gone_application(settings.state_dir, app)
    return found


def _brokers_answer(settings: Settings) -> bool:
    try:
        config = librdkafka_config(settings)
    except InvalidSettings:
        return False
    return brokers_answer(config, short_timeout_s(settings, _ANSWER_S))


def _tasks_of(plan: TopologyPlan, settings: Settings) -> list[TaskId] | None:
    """Return the tasks that an application has now; None if they cannot be determined."""
    try:
        return OperationContext.of(plan, settings, (), wall_clock_ms).evidence.tasks()
    except TidemarkError as error:
        log.warning("failed to determine the tasks of %s: %s", plan.application_id, error)
        return None


def gone_application(state_dir: Path, application_id: str) -> list[Leftover]:
    """Return the folders of an application that no deployed topology has."""
    why = "no topology in include/topologies has this application id"
    found = [
        _leftover(LeftoverKind.GONE_APPLICATION, application_id, path, why, holder=path)
        for path in sorted(state_dir.glob(f"[!.]*/{application_id}"))
        if _is_holder(path.parent.name)
    ]
    beside = [path for name in _BESIDE_HOLDERS if (path := state_dir / name / application_id).is_dir()]
    for folders in _temporary(state_dir, application_id):
        all_folders = sorted(path for path in folders.glob("*") if path.is_dir())
        if all_folders and abandoned_folders(folders) == all_folders:
            beside.append(folders)
    return found + [_leftover(LeftoverKind.GONE_APPLICATION, application_id, path, why) for path in beside]


def furthest(task: TaskId, folders: Sequence[Path]) -> Path | None:
    """Return the folder whose stores hold the newest batch; None if two folders hold it."""
    batches = {folder: newest_batch(folder / str(task)) for folder in folders}
    first = max(batches.values(), default=-1)
    ahead = [folder for folder, batch in batches.items() if batch == first]
    return ahead[0] if len(ahead) == 1 else None


def newest_batch(task_folder: Path) -> int:
    """Return the newest batch that a task's stores hold; -1 if none can be read."""
    batches = [-1]
    for folder in (task_folder / STORES_FOLDER).glob("*"):
        if (folder / "CURRENT").exists():
            try:
                checkpoint = read_store_checkpoint(folder)
            except TaskCorrupted:
                continue
            batches += [checkpoint.batch] if checkpoint is not None else []
    return max(batches)


def store_of(name: str, stores: Collection[str]) -> tuple[LeftoverKind, str] | None:
    """Return the kind and the store of a leftover next to a task's stores; None if `name` is a store itself."""
    for kind, pattern in ((LeftoverKind.CORRUPT, CORRUPT_STORE), (LeftoverKind.HALF_BUILT, RESTORING_STORE)):
        match = pattern.fullmatch(name)
        if match is not None and name not in stores:
            return kind, match["store"]
    return None


def has_store(task_folder: Path, stores: Collection[str]) -> bool:
    """Return whether a task's folder has any store that is not itself a leftover."""
    return any(store_of(path.name, stores) is None for path in (task_folder / STORES_FOLDER).glob("*"))


def _temporary(state_dir: Path, application_id: str) -> list[Path]:
    """Return the folders in which an application's instances and jobs create their temporary folders."""
    found = (state_dir / TEMPORARY_FOLDER).glob("*")
    return sorted(path for path in found if path.is_dir() and application_of(path.name) == application_id)


def _is_holder(name: str) -> bool:
    return name.isdigit() or name.startswith(STANDBY_PREFIX)


def _hold(var_dir: Path, application_id: str) -> Iterator[Leftover]:
    hold = read_hold(var_dir, application_id)
    stale = None if hold is None else stale_because(var_dir, application_id, hold)
    if stale is not None:
        yield _leftover(LeftoverKind.STALE_HOLD, application_id, hold_path(var_dir, application_id), stale)


def _task_folders(
    state_dir: Path, known: KnownApplications, keeper: Keeper, own: Collection[Path]
) -> Iterator[Leftover]:
    """Yield gone tasks, tasks that another instance has taken, and leftovers of stores, for every instance and standby."""
    app, plan = known.application_id, known.plan
    instances = holders(state_dir, app)
    standbys = sorted(path for path in state_dir.glob(f"{STANDBY_PREFIX}*/{app}") if path.is_dir())
    having: dict[TaskId, list[Path]] = {}
    for holder in [*instances, *standbys]:
        works = holder not in own and is_locked(holder)
        for task, folder in _tasks(holder):
            if _is_gone(task, known):
                why = f"the topology does not have task {task} any more"
                yield _leftover(LeftoverKind.GONE_TASK, app, folder, why, holder, task)
                continue
            stores = {spec.name for spec in plan.subtopologies[task.subtopology].stores}
            if holder in instances and has_store(folder, stores):
                having.setdefault(task, []).append(holder)
            for path in sorted((folder / STORES_FOLDER).glob("*")):
                left = store_of(path.name, stores)
                if left is not None and not (works and left[0] is LeftoverKind.HALF_BUILT):
                    why = (
                        "RocksDB could not read it, and it was moved aside"
                        if left[0] is LeftoverKind.CORRUPT
                        else "a start or a restore was killed while building it"
                    )
                    yield _leftover(left[0], app, path, why, holder, task, left[1])
    for task, folders in sorted(having.items()):
        kept = keeper(task, folders) if len(folders) > 1 else None
        for holder in folders if kept is not None else ():
            if holder != kept:
                why = f"instance {kept.parent.name} has continued task {task}" if kept is not None else ""
                yield _leftover(LeftoverKind.STALE_TASK, app, holder / str(task), why, holder, task)


def _tasks(holder: Path) -> Iterator[tuple[TaskId, Path]]:
    """Yield the tasks with stores in the folder of an instance or standby."""
    for folder in sorted(holder.glob("*_*")):
        try:
            task = TaskId.parse(folder.name)
        except ValueError:
            continue
        if any((folder / STORES_FOLDER).glob("*")):
            yield task, folder


def _is_gone(task: TaskId, known: KnownApplications) -> bool:
    return task.subtopology >= len(known.plan.subtopologies) or (known.tasks is not None and task not in known.tasks)


def _restores(state_dir: Path, application_id: str) -> Iterator[Leftover]:
    for workspace in workspaces(state_dir, application_id):
        name = workspace.folder.name
        if is_locked(workspace.folder):
            continue
        progress = workspace.progress()
        state = progress.state
        if state in UNFINISHED:
            why = f"restore {name} was left while it was {state}"
            yield _leftover(LeftoverKind.UNFINISHED, application_id, workspace.folder, why)
        elif state is not RestoreState.PLANNED:
            for path in (workspace.built, workspace.set_aside, workspace.folder / "recomputed"):
                if any(path.glob("*")):
                    yield _leftover(LeftoverKind.BUILT, application_id, path, f"restore {name} is {state}")
            if state is RestoreState.DONE and workspace.replaced(progress.moves):
                why = f"restore {name} replaced it"
                yield _leftover(LeftoverKind.PREVIOUS, application_id, workspace.previous, why)


def _rewinds(state_dir: Path, application_id: str) -> Iterator[Leftover]:
    for folder in sorted((state_dir / REWINDS_FOLDER / application_id).glob("*")):
        if not is_id(folder.name):
            continue
        try:
            state = json.loads((folder / "rewind.json").read_text())["state"]
        except FileNotFoundError:
            why = "a rewind was killed before it committed anything"
            yield _leftover(LeftoverKind.BUILT, application_id, folder, why)
            continue
        workspace = Workspace(state_dir, application_id, folder.name, REWINDS_FOLDER)
        if state != "done":
            why = f"rewind {folder.name} was left while it was {state}"
            yield _leftover(LeftoverKind.UNFINISHED, application_id, folder, why)
        elif any(workspace.previous.glob("*/*")):
            yield _leftover(
                LeftoverKind.PREVIOUS, application_id, workspace.previous, f"rewind {folder.name} replaced it"
            )


def _changes(state_dir: Path, application_id: str) -> Iterator[Leftover]:
    """Yield the folders of changes. A change has its folder only while it works, under a hold."""
    for name in _CHANGES:
        folder = state_dir / name / application_id
        if folder.exists():
            why = "an upgrade, a rescale, a reset or a repair was killed"
            yield _leftover(LeftoverKind.BUILT, application_id, folder, why)


def _drills(state_dir: Path, application_id: str) -> Iterator[Leftover]:
    folder = state_dir / DRILLS_FOLDER / application_id
    if is_locked(folder):
        return
    for path in sorted(path for path in folder.glob("*") if path.is_dir()):
        yield _leftover(LeftoverKind.BUILT, application_id, path, "a drill was killed")


def _savepoints(settings: Settings, application_id: str) -> Iterator[Leftover]:
    """Yield the links of savepoints of the stopped application, which keep files that its stores no longer have."""
    if is_locked(command_folder(settings.var_dir, application_id)):
        return
    for path in sorted((settings.state_dir / LINKS_FOLDER / application_id).glob("*")):
        yield _leftover(LeftoverKind.BUILT, application_id, path, "a `tidemark savepoint take` was killed")


def _leftover(
    kind: LeftoverKind,
    application_id: str,
    path: Path,
    why: str,
    holder: Path | None = None,
    task: TaskId | None = None,
    store: str | None = None,
) -> Leftover:
    size, since_ms = _measure(path)
    return Leftover(kind, application_id, path, size, since_ms, why, holder, task, store)


def _measure(path: Path) -> tuple[int, int]:
    """Return the bytes below a path, and when it was last written, in epoch milliseconds; zeros if it no longer exists."""
    try:
        stat = path.stat()
        if not path.is_dir():
            return stat.st_size, int(stat.st_mtime * 1000)
        return folder_bytes(path), int(stat.st_mtime * 1000)
    except FileNotFoundError:
        return 0, 0
