"""Removing leftovers of an application from this disk if its state is safe without them (`tidemark clean`).

A leftover may be removed if the next start and the next restore would do the same without it. It is kept, with the reason, if
something else could be lost with it: the only contents of a store that is not logged, or the only copy with the batch of the
last commit. Everything is moved to `<state_dir>/.removed/<app>` by one rename before it is deleted. If the command is killed, a
folder is therefore either complete or no longer a store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tidemark.commit.history import last_commit_records
from tidemark.errors import PreflightFailed, TaskCorrupted, TaskLocked
from tidemark.failpoint import Probe
from tidemark.folder_lock import FolderLock, is_locked
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.topics import partition_counts
from tidemark.names import DRILLS_FOLDER, TaskId, commits_topic
from tidemark.operations.evidence_reader import EvidenceReader, Found
from tidemark.operations.leftovers import (
    REMOVED_FOLDER,
    KnownApplications,
    Leftover,
    LeftoverKind,
    find_leftovers,
    has_store,
    is_held,
    store_of,
)
from tidemark.operations.savepoint import command_folder
from tidemark.operations.unfinished_work import unfinished_work
from tidemark.operations.workspace import RESTORES_FOLDER, Workspace, new_id
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import Resume, StartPlan, plan_start
from tidemark.restore.fencing import fenced, holders
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.savepoints.offline import LINKS_FOLDER
from tidemark.settings import Settings
from tidemark.stores.directory import folder_of
from tidemark.supervision.hold import holding, read_hold, release_hold
from tidemark.topology.plan import StoreSpec

_NO_BATCH, _UNREADABLE = -2, -1
_BESIDE_STATE = (LeftoverKind.REMOVED, LeftoverKind.TEMPORARY)


@dataclass(frozen=True)
class Judged:
    """A leftover, whether it may be removed, and why."""

    leftover: Leftover
    is_removed: bool
    why: str


@dataclass(frozen=True)
class CleanPlan:
    """The leftovers of an application: what would be removed and what is kept."""

    application_id: str
    judged: tuple[Judged, ...]

    @property
    def removed(self) -> list[Leftover]:
        """The leftovers that may be removed."""
        return [each.leftover for each in self.judged if each.is_removed]

    @property
    def bytes(self) -> int:
        """Size in bytes of the leftovers that may be removed."""
        return sum(each.bytes for each in self.removed)


@dataclass(frozen=True)
class Clean:
    """Cleans up after one application. With `previous`, replaced state goes too. `report` gets a line for each step."""

    evidence: EvidenceReader
    previous: bool
    probe: Probe
    report: Callable[[str], None]

    def show(self) -> CleanPlan:
        """Plan what would be removed now; the application may run. Blocks. Raises `StartRefused`, `OutcomeUnknown`."""
        var_dir, app = self.evidence.clients.settings.var_dir, self.evidence.plan.application_id
        return self._plan(self._running_here(), is_held=is_held(var_dir, app))

    def run(self, approve: Callable[[CleanPlan], bool]) -> CleanPlan | None:
        """Plan, ask for approval, hold the application, judge again, and remove. Returns None if `approve` refused.

        Only leftovers that were approved and are still safe to remove are removed; the returned plan lists these. A running
        instance keeps its folders. Blocks. Raises `TaskLocked` if another command or a case works on the application, and
        else as `show`.
        """
        settings, app = self.evidence.clients.settings, self.evidence.plan.application_id
        hold = read_hold(settings.var_dir, app)
        asked = self.show()
        if not approve(asked):
            return None
        if not asked.removed:
            return CleanPlan(app, ())
        approved = {leftover.path for leftover in asked.removed}
        with (
            holding(settings.var_dir, app, self.report, gives_back=True),
            self._fenced_if_stopped() as (runs, own),
        ):
            now = self._plan(runs, is_held=False, own=own)
            judged = tuple(each for each in now.judged if each.is_removed and each.leftover.path in approved)
            removed = tuple(each for each in judged if self._remove(each.leftover))
            # Judged again: under the hold of this command, the stale one is not listed.
            is_complete = self._unfinished() is None
        holds = tuple(
            each for each in asked.judged if each.leftover.kind is LeftoverKind.STALE_HOLD and each.is_removed
        )
        if holds and is_complete and hold is not None and release_hold(settings.var_dir, app, hold.by, hold.process):
            return CleanPlan(app, holds + removed)
        return CleanPlan(app, removed)

    def _unfinished(self) -> str | None:
        """Return what was left half done, so that no instance may be launched yet, and the commands that end it."""
        return unfinished_work(self.evidence.clients, self.evidence.plan.application_id, "NAME")

    @contextmanager
    def _fenced_if_stopped(self) -> Iterator[tuple[str | None, Sequence[Path]]]:
        """Lock all folders during the block if nothing runs. Yields the reason if they were not locked, and the folders."""
        clients, app = self.evidence.clients, self.evidence.plan.application_id
        with ExitStack() as locks:
            # Even a short lock would keep an instance from adopting the folder of one that has ended.
            runs = self._running_here()
            own: Sequence[Path] = ()
            if runs is None:
                try:
                    own = locks.enter_context(fenced(clients.settings, clients.admin, app, self.report))
                except (TaskLocked, PreflightFailed) as error:
                    runs = str(error)
            yield runs, own

    def _running_here(self) -> str | None:
        """Return why folders of instances cannot be touched; None if no instance runs here. The group is checked later."""
        state_dir, app = self.evidence.clients.settings.state_dir, self.evidence.plan.application_id
        found = [folder.parent.name for folder in holders(state_dir, app) if is_locked(folder)]
        return f"instance {', '.join(found)} runs" if found else None

    def _plan(self, runs: str | None, *, is_held: bool, own: Sequence[Path] = ()) -> CleanPlan:
        evidence, plan = self.evidence, self.evidence.plan
        judge = _Judge(evidence, evidence.read(), runs, own, self.previous, self._unfinished())
        known = KnownApplications(plan.application_id, plan, judge.found.keys())
        found = find_leftovers(evidence.clients.settings, known, judge.keeper, is_held=is_held, own=own)
        return CleanPlan(known.application_id, tuple(judge.judge(leftover) for leftover in found))

    def _remove(self, leftover: Leftover) -> bool:
        """Move a folder away and delete it. Returns False if another process has started to use it."""
        try:
            self._remove_locked(leftover)
        except TaskLocked as error:
            self.report(f"{leftover.path} is kept: {error}")
            return False
        except FileNotFoundError:
            if leftover.kind is not LeftoverKind.TEMPORARY:
                raise
            self.report(f"{leftover.path} is gone: a launch has removed it")
            return False
        self.report(f"removed {leftover.path}")
        return True

    def _remove_locked(self, leftover: Leftover) -> None:
        settings = self.evidence.clients.settings
        away = settings.state_dir / REMOVED_FOLDER / leftover.application_id
        with ExitStack() as locks:
            lock = _lock_of(leftover, settings)
            if lock is not None:
                locks.enter_context(lock)
            if leftover.kind is not LeftoverKind.REMOVED:
                away.mkdir(parents=True, exist_ok=True)
                path = away / new_id()
                self.probe("clean-before-rename")
                leftover.path.rename(path)
            else:
                path = leftover.path
            self.probe("clean-renamed")
            shutil.rmtree(path)


def _lock_of(leftover: Leftover, settings: Settings) -> FolderLock | None:
    """Take the lock of the restore, drills, savepoint or launches that a leftover belongs to; None if it has none.

    Raises `TaskLocked`.
    """
    state_dir = settings.state_dir
    if leftover.kind is LeftoverKind.TEMPORARY:
        return FolderLock(leftover.path.parent)
    drills = state_dir / DRILLS_FOLDER / leftover.application_id
    if leftover.path.is_relative_to(drills):
        return FolderLock(drills)
    if leftover.path.is_relative_to(state_dir / LINKS_FOLDER):
        return FolderLock(command_folder(settings.var_dir, leftover.application_id))
    restores = state_dir / RESTORES_FOLDER / leftover.application_id
    if not leftover.path.is_relative_to(restores):
        return None
    name = leftover.path.relative_to(restores).parts[0]
    return Workspace(state_dir, leftover.application_id, name).lock()


@dataclass(frozen=True)
class _Judge:
    """Decides on evidence that was gathered once.

    `runs` is the reason why folders of instances must not be touched, or None. `own` are the folders locked by this process.
    `unfinished` is what was left half done, with the commands that end it, or None.
    """

    evidence: EvidenceReader
    found: Mapping[TaskId, Found]
    runs: str | None
    own: Sequence[Path]
    previous: bool
    unfinished: str | None
    _plans: dict[tuple[TaskId, tuple[Path, ...]], StartPlan] = field(default_factory=dict)

    def judge(self, leftover: Leftover) -> Judged:
        """Decide whether a leftover may be removed."""
        kept = self._kept_because(leftover)
        return Judged(leftover, kept is None, self._safe_because(leftover) if kept is None else kept)

    def keeper(self, task: TaskId, folders: Sequence[Path]) -> Path | None:
        """Return the one folder that is as good for each store of a task as all folders together; None if there is none.

        If the instance that made the last commit has the task, only its folder qualifies.
        """
        owner = [folder for folder in folders if folder.parent.name == str(self.found[task].facts.last_instance)]
        whole = self._ways(task, self._folders(task))
        if whole is None:
            return None
        return next((folder for folder in owner or folders if self._ways(task, (folder,)) == whole), None)

    def _kept_because(self, leftover: Leftover) -> str | None:
        kind, task = leftover.kind, leftover.task
        if kind is LeftoverKind.STALE_HOLD:
            return self.unfinished
        if kind in _BESIDE_STATE:
            return None
        if kind is LeftoverKind.UNFINISHED:
            return self._continued_by(leftover)
        if leftover.holder is not None and self.runs is not None:
            return f"{self.runs}: stop the application first"
        if leftover.holder is not None and leftover.holder not in self.own and is_locked(leftover.holder):
            return f"{leftover.holder.parent.name} runs"
        if kind is LeftoverKind.GONE_TASK and task is not None:
            return self._gone_kept_because(leftover, task)
        if kind is LeftoverKind.PREVIOUS:
            return self._previous_kept_because(leftover)
        tasks = [task] if task is not None else self._tasks_in(leftover.path)
        for each in tasks:
            refused = self._refused_because(each)
            if refused is not None:
                return refused
        if kind is LeftoverKind.CORRUPT and task is not None:
            spec = self._specs(task).get(leftover.store or "")
            if spec is not None and not spec.is_logged:
                return f"store {spec.name} is not logged and this is its only remainder; remove it by hand"
            if self._ways(task, ()) is None:
                return (
                    f"task {task} could be restored only from the folders here, and this may hold data that they lack"
                )
        if kind is LeftoverKind.STALE_TASK and task is not None and leftover.holder is not None:
            return self._stale_kept_because(task, leftover.holder)
        return None

    def _continued_by(self, leftover: Leftover) -> str:
        state_dir, app = self.evidence.clients.settings.state_dir, leftover.application_id
        if leftover.path.is_relative_to(state_dir / RESTORES_FOLDER):
            return f"it can be continued: {Workspace(state_dir, app, leftover.path.name).remedy('NAME')}"
        return "it can be continued: run `tidemark rewind run NAME` again"

    def _safe_because(self, leftover: Leftover) -> str:
        return {
            LeftoverKind.STALE_HOLD: "no process works under it",
            LeftoverKind.CORRUPT: "no process reads it, and the store has another source of state",
            LeftoverKind.HALF_BUILT: "no process reads it, and it is built again when it is needed",
            LeftoverKind.STALE_TASK: "every store starts and restores from the other folder in the same way without it",
            LeftoverKind.GONE_TASK: "no start opens it, and no commit record names it",
            LeftoverKind.BUILT: "no process reads it, and the state is in place",
            LeftoverKind.PREVIOUS: "--previous was given, and the current state contains everything in it",
            LeftoverKind.REMOVED: "its removal was already approved",
            LeftoverKind.TEMPORARY: "its processes have ended",
        }[leftover.kind]

    def _refused_because(self, task: TaskId) -> str | None:
        """Return why a task cannot start. Such a task keeps everything, because its repair may need it."""
        if task not in self.found:
            return None
        plan = self._start_plan(task, self._folders(task))
        if isinstance(plan, Resume):
            return None
        why = getattr(plan, "reason", f"task {task} has never committed anything")
        return f"the task cannot start from its current state, repair that first: {why}"

    def _stale_kept_because(self, task: TaskId, holder: Path) -> str | None:
        folders = self._folders(task)
        keeper = self.keeper(task, folders)
        if keeper is None or keeper == holder:
            return f"no other folder is as good as this one for every store of task {task}"
        others = tuple(folder for folder in folders if folder != holder)
        if self._ways(task, others) != self._ways(task, folders):
            return f"the next restore of task {task} would use other sources of state without it"
        if self._ways(task, ()) is None:
            return f"this and {keeper} are the only sources that task {task} could be restored from"
        return self._only_contents(task, holder / str(task), [keeper / str(task)])

    def _gone_kept_because(self, leftover: Leftover, task: TaskId) -> str | None:
        if task in self._committed:
            return f"{commits_topic(leftover.application_id)} has a record of task {task}: its topic may have lost partitions"
        return self._only_contents(task, leftover.path, [])

    def _previous_kept_because(self, leftover: Leftover) -> str | None:
        if not self.previous:
            if leftover.path.parents[2].name != RESTORES_FOLDER:
                return "it is the state before the rewind; --previous removes it, too"
            return f"`tidemark restore rollback NAME {leftover.path.parent.name}` can bring it back; --previous removes it, too"
        for folder in sorted(leftover.path.glob("*/*_*")):
            task = TaskId.parse(folder.name)
            if task not in self.found:
                continue
            refused = self._refused_because(task)
            live = [holder / str(task) for holder in self._folders(task)]
            kept = refused or self._only_level(task, folder, live) or self._only_contents(task, folder, live)
            if kept is not None:
                return kept
        return None

    def _only_level(self, task: TaskId, folder: Path, others: Sequence[Path]) -> str | None:
        """Return a reason to keep a folder that alone holds a store as of the last commit, else None."""
        record = self.found[task].facts.record
        if record is None:
            return None
        for name in self._specs(task):
            here = _batch(folder, name)
            if here >= record.batch > max((_batch(other, name) for other in others), default=_NO_BATCH):
                return f"it is the only copy of {task}/{name} with the last commit's batch {record.batch}"
        return None

    def _only_contents(self, task: TaskId, folder: Path, others: Sequence[Path]) -> str | None:
        """Return a reason to keep a folder that alone holds a store without a changelog (it cannot be restored), else None."""
        for name, spec in self._specs(task).items():
            place = _store(folder, name)
            if spec.is_logged or spec.in_memory:
                continue
            for path in place.parent.glob("*"):
                if store_of(path.name, self._specs(task)) == (LeftoverKind.CORRUPT, name):
                    return f"store {task}/{name} is not logged, and {path} is its only remainder; remove it by hand"
            if not place.exists():
                continue
            summary = f"store {task}/{name} is not logged, and {place} is its only copy; remove it by hand"
            if spec.custom is not None:
                if not any(_store(other, name).exists() for other in others):
                    return summary
                continue
            here = _batch(folder, name, unreadable=_UNREADABLE)
            if here > max((_batch(other, name) for other in others), default=_NO_BATCH):
                return summary
        return None

    def _specs(self, task: TaskId) -> dict[str, StoreSpec]:
        subtopologies = self.evidence.plan.subtopologies
        if task.subtopology >= len(subtopologies):
            return {}
        return {spec.name: spec for spec in subtopologies[task.subtopology].stores}

    def _folders(self, task: TaskId) -> tuple[Path, ...]:
        """Return the application's folders of instances that have a store of the task."""
        state_dir, app = self.evidence.clients.settings.state_dir, self.evidence.plan.application_id
        return tuple(
            holder for holder in holders(state_dir, app) if has_store(holder / str(task), self._specs(task).keys())
        )

    def _ways(self, task: TaskId, folders: tuple[Path, ...]) -> dict[str, tuple[object, ...]] | None:
        """Return how each logged store is restored with only these folders, without locations; None if a start is refused."""
        plan = self._start_plan(task, folders)
        if not isinstance(plan, Resume):
            return None
        return {
            store: (candidate.kind, candidate.from_offset, candidate.end_offset, candidate.bytes_to_copy)
            for store, candidate in plan.stores.items()
        }

    def _start_plan(self, task: TaskId, folders: tuple[Path, ...]) -> StartPlan:
        """Plan the start of a task that finds local stores only in these folders; other copies are left as they are."""
        if (task, folders) not in self._plans:
            found = self.found[task]

            def is_there(copy: StateCopy) -> bool:
                return copy.kind is not SourceOfState.LOCAL or any(
                    Path(copy.location).is_relative_to(folder) for folder in folders
                )

            copies = {store: [copy for copy in held if is_there(copy)] for store, held in found.copies.items()}
            self._plans[task, folders] = plan_start(self.evidence.witnesses.evidence(found.facts, copies))
        return self._plans[task, folders]

    @staticmethod
    def _tasks_in(folder: Path) -> list[TaskId]:
        """Return the tasks that have a folder directly in `folder`, or in a folder of an instance below it."""
        found = set()
        for path in [*folder.glob("*_*"), *folder.glob("*/*_*")]:
            try:
                found.add(TaskId.parse(path.name))
            except ValueError:
                continue
        return sorted(found)

    @cached_property
    def _committed(self) -> frozenset[TaskId]:
        """Tasks that have a commit record although the topology no longer has them."""
        clients, app = self.evidence.clients, self.evidence.plan.application_id
        count = partition_counts(clients.admin, clients.settings).get(commits_topic(app), 0)
        gone = {
            task
            for path in clients.settings.state_dir.glob(f"[!.]*/{app}")
            for task in self._tasks_in(path)
            if task not in self.found and task.partition < count
        }
        if not gone:
            return frozenset()
        after_s = stalled_after(clients.settings)
        return frozenset(last_commit_records(clients.client_config, clients.ends, app, gone, stalled_after_s=after_s))


def _store(task_folder: Path, store: str) -> Path:
    return folder_of(task_folder.parent, TaskId.parse(task_folder.name), store)


def _batch(task_folder: Path, store: str, *, unreadable: int = _NO_BATCH) -> int:
    """Return the batch that a store holds; `_NO_BATCH` if there is no store, or nothing was committed to it."""
    folder = _store(task_folder, store)
    if not (folder / "CURRENT").exists():
        return _NO_BATCH
    try:
        checkpoint = read_store_checkpoint(folder)
    except TaskCorrupted:
        return unreadable
    return _NO_BATCH if checkpoint is None else checkpoint.batch
