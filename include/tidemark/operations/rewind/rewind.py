"""Return of an application to the state of an earlier time. See invariant: point in time.

Steps, with all instances fenced: build the state of that time beside the live one and verify it; write the difference
to the changelogs, the offsets of that time and a commit record per task, in one transaction; verify the changelogs as
they are then; swap. Before the commit nothing is changed. After it the live folders are ahead of Kafka, and every start
refuses them until this command or `tidemark restore run` has replaced them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.commit.history import last_commit_records
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.errors import StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.operator_acls import Command
from tidemark.names import TaskId
from tidemark.operations.clients import Clients
from tidemark.operations.disk_space import require_room
from tidemark.operations.producer_fencing import fence, takeover
from tidemark.operations.rewind.build import PointInTimeBuilder
from tidemark.operations.rewind.commit import RewindCommitter, TaskWork
from tidemark.operations.rewind.plan import RewindPlan, StoreRewind, TaskRewind, require_rewindable
from tidemark.operations.times import format_time
from tidemark.operations.workspace import Move, Workspace, is_id, unfinished_restore
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.start_plan import Fresh, Refuse, committed_progress_of
from tidemark.registry.operator_rights import verify_operator
from tidemark.registry.topic_identities import format_lost
from tidemark.restore.fencing import fenced
from tidemark.restore.task_opener import restore_job
from tidemark.stores.directory import folder_of

REWINDS_FOLDER = ".rewinds"
_FILE = "rewind.json"
TRANSACTION_TIMEOUT_MS = 600_000


class RewindState(StrEnum):
    """The state of a rewind that has begun to commit."""

    COMMITTING = "committing"
    DONE = "done"


@dataclass(frozen=True)
class RewindProgress:
    """Written before the commit; the commit records show whether the commit happened.

    `batches` are the rewind's own, by task.
    """

    state: RewindState
    at_ms: int
    commit_time_ms: int
    batches: Mapping[str, int]
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Rewind:
    """One rewind, with its workspace below `<state_dir>/.rewinds`. `report` is called with a line for each step."""

    builder: PointInTimeBuilder
    workspace: Workspace
    probe: Probe
    report: Callable[[str], None]

    @property
    def state(self) -> RewindState | None:
        """The state of this rewind; None before it begins to commit."""
        progress = self._progress()
        return None if progress is None else progress.state

    def plan(self, at_ms: int) -> RewindPlan:
        """Return what a rewind would do now. Raises `StartRefused` or `PreflightFailed`.

        The application may run. Both states are built, to count what differs. Blocks.
        """
        require_rewindable(self.builder.context.plan)
        try:
            return self._planned(at_ms, self._work(at_ms))
        finally:
            shutil.rmtree(self.workspace.folder, ignore_errors=True)

    def run(self, at_ms: int, approve: Callable[[RewindPlan], bool]) -> bool:
        """Plan with all instances fenced, ask, commit, swap. Returns False if `approve` returned False. Blocks.

        A rewind that was committed but not swapped is finished instead, without asking. Raises `TaskLocked` or
        `PreflightFailed` while the application runs, `StartRefused`, also while a restore is unfinished, and what a
        commit raises: after `OutcomeUnknown`, run it again to find out.
        """
        clients, plan = self.builder.context.clients, self.builder.context.plan
        app = plan.application_id
        require_rewindable(plan)
        verify_operator(Command.REWIND, plan, clients.settings, clients.admin)
        with fenced(clients.settings, clients.admin, app, self.report) as held:
            if (left := unfinished_restore(clients.settings.state_dir, app, "NAME")) is not None:
                raise StartRefused(f"{left}; nothing was changed")
            # Settles the transactions that dead instances left open; copies of them elsewhere can no longer commit.
            fence(clients, plan, {int(folder.parent.name) for folder in held if folder.parent.name.isdigit()} - {0})
            # Fences a copy of instance 0 elsewhere, and settles the transactions that it or an earlier rewind left open.
            producer = takeover(clients, plan).of(0, TRANSACTION_TIMEOUT_MS)
            if self._finish_earlier():
                return True
            committer = RewindCommitter(self.builder.context.evidence, producer, self.probe)
            try:
                return self._run(at_ms, approve, committer, held)
            finally:
                if self._progress() is None:
                    shutil.rmtree(self.workspace.folder, ignore_errors=True)

    def _run(
        self,
        at_ms: int,
        approve: Callable[[RewindPlan], bool],
        committer: RewindCommitter,
        held: Sequence[Path],
    ) -> bool:
        context = self.builder.context
        work = self._work(at_ms)
        plan = self._planned(at_ms, work)
        if plan.changes_nothing:
            raise StartRefused(
                f"{context.plan.application_id} is already in the state of {format_time(at_ms)}: there is nothing to rewind; "
                "if a start refuses its local state, `tidemark restore run NAME` replaces it"
            )
        if not approve(plan):
            return False
        moves = tuple(
            move
            for one in work
            if one.stores
            for move in self.workspace.moves_of(str(one.task), held, one.earlier.facts.last_instance)
        )
        progress = RewindProgress(
            RewindState.COMMITTING, at_ms, context.clients.clock(), {str(one.task): one.batch for one in work}, moves
        )
        self.report("writing the difference, the offsets and the commit records")
        committer.prepare(work, progress.commit_time_ms)
        self._write(progress)
        committer.commit()
        self._put_in_place(progress)
        return True

    def _work(self, at_ms: int) -> list[TaskWork]:
        """Build both states of every task in the workspace. Returns the work per task."""
        builder, evidence = self.builder, self.builder.context.evidence
        require_room(evidence.witnesses, evidence.facts(), None, [self.workspace.folder])
        self.report(f"building the state of {format_time(at_ms)}")
        states = builder.build(at_ms, self.workspace.built)
        facts = evidence.facts()
        self.report("building the present state from the changelogs")
        work = []
        for task, state in states.items():
            state = replace(state, facts=facts[task])
            present = self._present(facts[task])
            self._require_sources(facts[task], state.point_in_time.committed)
            stores = tuple(builder.stores_of(task))
            for spec in stores:
                folder = folder_of(self._now_folder, task, spec.name)
                builder.build_present(state, present, spec, folder)
            work.append(TaskWork(state, present, stores, self.workspace.built, self._now_folder))
        return work

    @property
    def _now_folder(self) -> Path:
        return self.workspace.folder / "now"

    def _present(self, facts: TaskFacts) -> CommittedProgress:
        if facts.lost:
            raise StartRefused(format_lost(self.builder.context.plan.application_id, facts.lost.values()))
        committed = committed_progress_of(self.builder.context.evidence.witnesses.evidence(facts, {}))
        if isinstance(committed, Refuse):
            raise StartRefused(f"{committed.reason}; {committed.remedy}")
        if isinstance(committed, Fresh):
            raise StartRefused(f"task {facts.task} has never committed anything: there is nothing to rewind")
        return committed

    def _require_sources(self, facts: TaskFacts, then: CommittedProgress) -> None:
        for partition, watermarks in facts.sources.items():
            offset = then.next_offsets.get(partition.topic)
            if offset is None:
                raise StartRefused(
                    f"task {facts.task} did not read {partition} at that time: the topology has changed; give a later time"
                )
            if offset < watermarks.low:
                raise StartRefused(
                    f"task {facts.task}: {partition} begins at offset {watermarks.low}, but at that time it was read "
                    f"up to {offset}: the records in between have been deleted and cannot be read again; give a later "
                    "time"
                )

    def _planned(self, at_ms: int, work: list[TaskWork]) -> RewindPlan:
        tasks, stores = [], []
        for one in work:
            record, reached = one.earlier.point_in_time.record, one.present.next_offsets
            back = {topic: one.then.next_offsets[topic] for topic in reached}
            tasks.append(
                TaskRewind(
                    str(one.task), record.batch, record.commit_time_ms, record.stream_times.task_ms, dict(reached), back
                )
            )
            for spec in one.stores:
                written = deleted = 0
                for _, value in one.changes(spec):
                    written, deleted = (written, deleted + 1) if value is None else (written + 1, deleted)
                stores.append(StoreRewind(str(one.task), spec.name, written, deleted))
        plan = self.builder.context.plan
        sinks = tuple(dict.fromkeys(topic for s in plan.subtopologies for topic in s.sink_topics))
        return RewindPlan(plan.application_id, at_ms, tuple(tasks), tuple(stores), sinks)

    def _finish_earlier(self) -> bool:
        """Finish the swap of an earlier rewind that was committed, and forget those that never were.

        Returns whether one was finished.
        """
        context = self.builder.context
        state_dir, app = context.clients.settings.state_dir, context.plan.application_id
        records = {task: facts.record for task, facts in context.evidence.facts().items()}
        for name in _names(state_dir, app):
            earlier = replace(self, workspace=Workspace(state_dir, app, name, REWINDS_FOLDER))
            progress = earlier._progress()
            if progress is None:
                shutil.rmtree(earlier.workspace.folder, ignore_errors=True)
            elif progress.state is RewindState.COMMITTING:
                if _is_last(progress, records):
                    self.report(
                        f"the rewind to {format_time(progress.at_ms)} is committed but not finished: finishing it"
                    )
                    earlier._put_in_place(progress)
                    return True
                shutil.rmtree(earlier.workspace.folder, ignore_errors=True)
        return False

    def _put_in_place(self, progress: RewindProgress) -> None:
        """Verify the built state against the changelogs as they are now, and swap it in. May be repeated."""
        builder, workspace = self.builder, self.workspace
        self.report("verifying the changelogs, then putting the state in place")
        facts = builder.context.evidence.facts()
        for name in progress.batches:
            task = TaskId.parse(name)
            buildable = builder.context.evidence.buildable(task)
            for spec in builder.stores_of(task):
                folder = folder_of(workspace.built, task, spec.name)
                if not folder.exists():
                    continue  # Swapped before a crash.
                committed = self._present(facts[task])
                job = restore_job(builder.context.plan, facts[task], spec, committed, builder.context.clients.clock())
                builder.verify(
                    task, job, folder, "the rewind is committed: `tidemark restore run NAME` rebuilds the local state"
                )
                if spec.name not in buildable:
                    shutil.rmtree(folder)
        self.probe("rewind-verified")
        workspace.swap(progress.moves, self.probe)
        shutil.rmtree(self._now_folder, ignore_errors=True)
        self._write(replace(progress, state=RewindState.DONE))
        app = builder.context.plan.application_id
        for name in _names(workspace.state_dir, app):
            if name != workspace.folder.name:
                shutil.rmtree(workspace.folder.with_name(name), ignore_errors=True)

    def _progress(self) -> RewindProgress | None:
        return _read(self.workspace.folder)

    def _write(self, progress: RewindProgress) -> None:
        replace_file(self.workspace.folder / _FILE, json.dumps(asdict(progress), indent=1), synced=True)


def finished_rewinds(state_dir: Path, application_id: str) -> list[RewindProgress]:
    """Return the rewinds of an application whose state is verified and in place, the newest first."""
    folder = state_dir / REWINDS_FOLDER / application_id
    found = (_read(folder / name) for name in _names(state_dir, application_id))
    return [progress for progress in found if progress is not None and progress.state is RewindState.DONE]


def unfinished_rewind(clients: Clients, application_id: str) -> str | None:
    """Return the id of a rewind that was committed last and whose state is not in place; None if there is none.

    Blocks, and asks Kafka only if a rewind has left a folder. Raises `OutcomeUnknown`.
    """
    state_dir = clients.settings.state_dir
    for name in _names(state_dir, application_id):
        progress = _read(state_dir / REWINDS_FOLDER / application_id / name)
        if progress is None or progress.state is not RewindState.COMMITTING:
            continue
        tasks = [TaskId.parse(task) for task in progress.batches]
        after_s = stalled_after(clients.settings)
        found = last_commit_records(clients.client_config, clients.ends, application_id, tasks, stalled_after_s=after_s)
        if _is_last(progress, {task: found.get(task) for task in tasks}):
            return name
    return None


def _is_last(progress: RewindProgress, records: Mapping[TaskId, CommitRecord | None]) -> bool:
    """Return whether `records`, the last ones of each task, are those of the rewind."""
    made = {TaskId.parse(task): batch for task, batch in progress.batches.items()}
    return all(
        record is not None
        and (record.kind, record.batch, record.commit_time_ms)
        == (CommitKind.REWIND, made.get(task), progress.commit_time_ms)
        for task, record in records.items()
    )


def _read(folder: Path) -> RewindProgress | None:
    """Return the progress of the rewind with this workspace; None before there is something to finish."""
    try:
        body = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        return None
    body["state"] = RewindState(body["state"])
    body["moves"] = tuple(Move(**move) for move in body["moves"])
    return RewindProgress(**body)


def _names(state_dir: Path, application_id: str) -> list[str]:
    """Return the ids of all rewinds of an application, the newest first."""
    found = (path.name for path in (state_dir / REWINDS_FOLDER / application_id).glob("*"))
    return sorted((name for name in found if is_id(name)), reverse=True)
