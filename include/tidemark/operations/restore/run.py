"""Running of a restore: fence, build beside the old state, verify, swap. It can be resumed, and rolled back by one command."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.record import CommitKind
from tidemark.errors import CopyUnusable, StartRefused, StoreFailed, TaskCorrupted
from tidemark.failpoint import Probe
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.history import DrillHistory, drill_history
from tidemark.operations.evidence_reader import EvidenceReader, Found
from tidemark.operations.workspace import RestoreState, Workspace, WorkspaceProgress, task_of, unfinished, workspaces
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.restore_plan import RestorePlan, StoreRestore
from tidemark.recovery.selection import EVERYTHING, Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import Fresh, Refuse, witnessed
from tidemark.restore.fencing import fenced
from tidemark.restore.listener import RestoreListener
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.restore.parallel import side_by_side
from tidemark.restore.recompute import Recomputation, recompute
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.store_builder import StoreBuilder
from tidemark.restore.unlogged_stores import carry_over
from tidemark.restore.verify import StoreVerification
from tidemark.stores.directory import folder_of
from tidemark.topology.plan import TopologyPlan

_NOTHING = "there is nothing that a restore rebuilds"


def make_plan(
    reader: EvidenceReader, restore_id: str, asked: SourceOfState | None, selection: Selection = EVERYTHING
) -> RestorePlan:
    """Compare the sources of all selected stores and return the plan. Changes nothing. Blocks.

    Raises `StartRefused` if a store has no source of state, a name is unknown, or there is nothing to restore.
    """
    history = drill_history(reader.clients.settings, reader.plan)
    evidence = _evidence(reader, asked, history)
    selection.require_known(reader.plan, {task: reader.buildable(task) for task in evidence})
    stores: list[StoreRestore] = []
    committed: dict[str, dict[str, int]] = {}
    source_lag = 0
    for task, found in evidence.items():
        selected = [store for store in reader.buildable(task) if selection.takes_store(store)]
        if not selection.takes_task(task) or (selection.stores and not selected):
            continue
        candidates = reader.candidates(found, asked, stores=selected, rates=history.rates)
        if candidates is None:
            continue
        committed[str(task)] = dict(candidates.committed.next_offsets)
        source_lag += sum(
            found.facts.sources[TopicPartition(topic, task.partition)].end - offset
            for topic, offset in candidates.committed.next_offsets.items()
        )
        stores += [
            StoreRestore.of(task, name, candidate, candidates.passed_over[name])
            for name, candidate in candidates.candidates.items()
        ]
    if not committed:
        raise StartRefused(
            f"{reader.plan.application_id} has never committed anything for {selection.summary}: there is nothing to restore"
        )
    not_rebuilt = _not_rebuilt(reader.plan, selection, {task.subtopology for task in map(TaskId.parse, committed)})
    if not stores:
        raise StartRefused(
            f"{_NOTHING} of {reader.plan.application_id} ({'; '.join(not_rebuilt) or 'it keeps no state'})"
        )
    return RestorePlan(
        restore_id=restore_id,
        application_id=reader.plan.application_id,
        topology_version=reader.plan.version,
        created_ms=reader.clients.clock(),
        asked=asked,
        stores=tuple(stores),
        not_rebuilt=tuple(not_rebuilt),
        committed=committed,
        source_lag=source_lag,
        selection=selection,
        rates=history.rates,
        rates_from=history.summary,
    )


def _evidence(reader: EvidenceReader, asked: SourceOfState | None, history: DrillHistory) -> dict[TaskId, Found]:
    """Return the evidence of each task. A kind of source that the operator asks for is not marked as suspected."""
    found = reader.read()
    if asked is not None:
        return found
    return {
        task: replace(
            one,
            copies={
                store: [replace(copy, suspected=history.suspicion(task, store, copy)) for copy in copies]
                for store, copies in one.copies.items()
            },
        )
        for task, one in found.items()
    }


def _not_rebuilt(plan: TopologyPlan, selection: Selection, subtopologies: Collection[int]) -> list[str]:
    """Return the stores that are not built although their tasks are replaced as a whole, each with what happens to it."""
    if selection.stores:
        return []
    change_kind = (
        "kept if it is custom and up to date with the last commit, otherwise rebuilt by the instance that opens it"
    )
    lost = "kept if it is up to date with the last commit, otherwise it begins empty: it cannot be restored"
    stores = [spec for number in sorted(subtopologies) for spec in plan.subtopologies[number].stores]
    return [f"{s.name}: {s.uncopied}, {change_kind if s.is_logged else lost}" for s in stores if s.uncopied is not None]


@dataclass(frozen=True)
class RestoreRun:
    """Runs one plan in its workspace. `report` is called with a line for each step."""

    context: OperationContext
    workspace: Workspace
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]

    def run(self) -> WorkspaceProgress:
        """Build, verify and swap. Blocks until the new state is in place, or raises and leaves the old state in place.

        Raises `TaskLocked` or `PreflightFailed` while the application runs, `StartRefused` if a source cannot be used
        or a verification fails, `RestoreSuspended` if it was aborted. After a crash it continues where it stopped.
        """
        plan = self.workspace.plan()
        with self._held(plan, self._resuming(plan)) as held:
            return self._swap(plan, self._prepared(plan, held), held)

    def prepare(self) -> WorkspaceProgress:
        """Do the first part of `run`: build and verify, so that only `swap` is left. May be repeated after a crash."""
        plan = self.workspace.plan()
        with self._held(plan, self._resuming(plan)) as held:
            return self._prepared(plan, held)

    def swap(self) -> WorkspaceProgress:
        """Do the rest of `run`. Raises `StartRefused` if nothing is prepared. May be repeated after a crash."""
        plan = self.workspace.plan()
        with self._held(plan, self._resuming(plan)) as held:
            progress = self.workspace.progress()
            if progress.state is not RestoreState.SWAPPING:
                raise StartRefused(
                    f"restore {plan.restore_id} is {progress.state}: it has no verified state to put in place"
                )
            return self._swap(plan, progress, held)

    def _prepared(self, plan: RestorePlan, held: Sequence[Path]) -> WorkspaceProgress:
        progress = self.workspace.progress()
        if progress.state in (RestoreState.DONE, RestoreState.ROLLED_BACK, RestoreState.ABORTED):
            raise StartRefused(f"restore {plan.restore_id} is {progress.state}; make a new plan")
        if progress.state is RestoreState.SWAPPING:
            if self.workspace.has_moved(progress.moves) or not self.outdated(self._facts(plan.tasks)):
                return progress
            self.report(
                "an instance has committed since the state was built: what is no longer up to date is built again"
            )
        if not plan.stores:
            raise StartRefused(
                f"{_NOTHING} in plan {plan.restore_id}; make another one with `tidemark restore plan NAME`"
            )
        progress = replace(progress, state=RestoreState.BUILDING, started_ms=self.context.clients.clock())
        return self._build_all(plan, progress, held)

    def outdated(self, facts: Mapping[TaskId, TaskFacts]) -> list[str]:
        """Return the built stores, as `task/store`, that are not up to date with the last commit of their task in `facts`.

        Those that have been put in place already are left out.
        """
        found: list[str] = []
        for store in self.workspace.plan().stores:
            task = TaskId.parse(store.task)
            folder = folder_of(self.workspace.built, task, store.store)
            committed = witnessed(self.context.evidence.witnesses.evidence(facts[task], {}))
            if folder.exists() and not (isinstance(committed, CommittedProgress) and _is_level(folder, committed)):
                found.append(f"{store.task}/{store.store}")
        return found

    def _facts(self, tasks: Sequence[str]) -> dict[TaskId, TaskFacts]:
        return self.context.evidence.witnesses.facts([TaskId.parse(name) for name in tasks])

    def _swap(self, plan: RestorePlan, progress: WorkspaceProgress, held: Sequence[Path]) -> WorkspaceProgress:
        if not plan.selection.stores:
            self._carry_over(plan, held)
        self.report("putting the verified state in place")
        progress = self._with_their_tasks(progress, held)
        self.workspace.swap(progress.moves, self.probe)
        self._forget_earlier()
        return self.workspace.finish(progress, RestoreState.DONE)

    def _with_their_tasks(self, progress: WorkspaceProgress, held: Sequence[Path]) -> WorkspaceProgress:
        """Write and return the progress with moves to where the tasks are now.

        An instance that ran since may have taken one over.
        """
        moves = self.workspace.with_their_tasks(progress.moves, held)
        if moves != progress.moves:
            progress = replace(progress, moves=moves)
            self.workspace.write(progress)
        return progress

    def roll_back(self) -> WorkspaceProgress:
        """Put the folders back that a finished or interrupted swap replaced.

        A new folder that replaced nothing stays: it is the only state there is. A restore whose swap has moved no folder yet
        is aborted. Raises `StartRefused` if there is nothing to put back.
        """
        plan, workspace = self.workspace.plan(), self.workspace
        with self._held(plan, f"tidemark restore rollback NAME {plan.restore_id}") as held:
            progress = workspace.progress()
            undoable = (RestoreState.DONE, RestoreState.SWAPPING, RestoreState.ROLLING_BACK)
            if progress.state not in undoable or not progress.moves:
                raise StartRefused(f"restore {plan.restore_id} is {progress.state}: it has replaced nothing")
            if progress.state is RestoreState.SWAPPING and not workspace.has_moved(progress.moves):
                workspace.drop_built()
                return workspace.finish(progress, RestoreState.ABORTED, "aborted; the old state is in place")
            if progress.state is not RestoreState.ROLLING_BACK:
                if lost := workspace.lost(progress.moves):
                    raise StartRefused(
                        f"restore {plan.restore_id}: the folder that {lost[0].live} replaced no longer exists; the "
                        "state now in place is verified, continue with it"
                    )
                if progress.state is RestoreState.DONE and not workspace.replaced(progress.moves):
                    raise StartRefused(
                        f"restore {plan.restore_id}: there was no folder before it; what it put in place is the only "
                        "state here and is verified: continue with it"
                    )
                self._require_unrepaired(plan, progress)
                progress = self._with_their_tasks(progress, held)
                aside = workspace.moves_aside(progress.moves, held)
                progress = replace(progress, state=RestoreState.ROLLING_BACK, aside=aside)
                if kept := workspace.kept_forward(progress.moves):
                    summary = f"no folder of {', '.join(kept)} was there before: what was put in place stays"
                    progress = replace(progress, message=summary)
                workspace.write(progress)
            if progress.message:
                self.report(progress.message)
            workspace.swap_back(progress.moves, progress.aside)
            done = workspace.finish(progress, RestoreState.ROLLED_BACK, progress.message)
            workspace.drop_built()
            return done

    def _require_unrepaired(self, plan: RestorePlan, progress: WorkspaceProgress) -> None:
        """Raise `StartRefused` if a changelog was repaired after the restore and no instance has run since.

        The old folders would seem up to date, but were never compared with what the repair wrote. Once an instance has
        run, they lack its batches, and read the repaired records with the changelog's tail.
        """
        for task, facts in self._facts(plan.tasks).items():
            record = facts.record
            if record is None or record.kind is not CommitKind.REPAIR or not record.changelogs:
                continue
            if record.commit_time_ms >= (progress.ended_ms or progress.started_ms):
                raise StartRefused(
                    f"restore {plan.restore_id}: changelog {', '.join(record.changelogs)} was repaired after it. The folders "
                    f"that it replaced for task {task} were never compared with the repaired changelog. Keep the state that is "
                    "in place, or build it again with `tidemark restore run NAME`"
                )

    @staticmethod
    def _resuming(plan: RestorePlan) -> str:
        return f"tidemark restore run NAME --resume {plan.restore_id}"

    @contextmanager
    def _held(self, plan: RestorePlan, again: str) -> Iterator[list[Path]]:
        """Yield the application's folders on this machine, locked against all others.

        Raises `StartRefused` if another restore has begun to swap, which may have happened since this one was planned or
        approved, and if the disk is full; the stored progress says how far it was.
        """
        clients = self.context.clients
        try:
            with (
                self.workspace.lock(),
                fenced(clients.settings, clients.admin, plan.application_id, self.report, again) as held,
            ):
                self.workspace.require_no_other_begun("NAME")
                yield held
        except (OSError, StoreFailed) as error:
            raise StartRefused(
                f"restore {plan.restore_id}: {error}; free disk space, then `{again}` continues it"
            ) from error

    def _build_all(self, plan: RestorePlan, progress: WorkspaceProgress, held: Sequence[Path]) -> WorkspaceProgress:
        """Build and verify every store. Returns the progress, with what to move. The old state is not touched."""
        self.workspace.write(progress)
        try:
            history = drill_history(self.context.clients.settings, self.context.plan)
            found = _evidence(self.context.evidence, plan.asked, history)
            verdicts = self._build_and_verify(plan, found, dict(progress.verdicts or {}))
            moves = tuple(
                move
                for unit in plan.units
                for move in self.workspace.moves_of(unit, held, found[task_of(unit)].facts.last_instance)
            )
        except RestoreSuspended:
            self.workspace.drop_built()
            self.workspace.finish(progress, RestoreState.ABORTED, "aborted; the old state is in place")
            raise
        except (OSError, StoreFailed) as error:
            self.workspace.drop_built()
            message = f"{error}; the old state is in place; free disk space and plan again"
            self.workspace.finish(progress, RestoreState.FAILED, message)
            raise StartRefused(message) from error
        except StartRefused as error:
            self.workspace.finish(progress, RestoreState.FAILED, str(error))
            raise
        swapping = replace(progress, state=RestoreState.SWAPPING, verdicts=verdicts, moves=moves)
        self.workspace.write(swapping)
        return swapping

    def _carry_over(self, plan: RestorePlan, held: Sequence[Path]) -> None:
        """Copy stores that are not logged, and custom ones, along with their task, unless it is in place already.

        This is done last, because an instance may have committed since the other stores were built. A swap that was killed
        may have moved the task's folder out of `held` to the workspace. Raises `StartRefused` if what Kafka has of a task
        is contradictory.
        """
        opener = self.context.rebuilder.builder(self.listener, self.probe, []).opener
        holders = [*held, *sorted(self.workspace.previous.glob("*"))]
        left = [task for task in plan.tasks if (self.workspace.built / task).exists()]
        for task, facts in self._facts(left).items():
            committed = witnessed(self.context.evidence.witnesses.evidence(facts, {}))
            if isinstance(committed, Refuse):
                raise StartRefused(f"{committed.reason}; {committed.remedy}")
            if isinstance(committed, Fresh):
                raise StartRefused(_lost(task, "the state was built"))
            carry_over(opener, self.context.plan, facts, committed, holders, self.workspace.built, self.report)

    def _build_and_verify(
        self, plan: RestorePlan, found: Mapping[TaskId, Found], known: dict[str, StoreVerification]
    ) -> dict[str, StoreVerification]:
        wanted = {TaskId.parse(name) for name in plan.tasks}
        if not wanted <= found.keys():
            raise StartRefused(
                "the application's partition counts have changed since the plan was made; make a new plan"
            )
        recomputed = self.workspace.folder / "recomputed"
        builder = self.context.rebuilder.builder(self.listener, self.probe, self.context.evidence.copies, recomputed)
        failed = threading.Event()
        verdicts: dict[str, StoreVerification] = {}

        def should_continue() -> bool:
            return not failed.is_set() and not self.workspace.abort_file.exists()

        if plan.asked is SourceOfState.SOURCE:
            self._recompute(plan, found, recomputed, should_continue)

        def verified(planned: StoreRestore, verdict: StoreVerification) -> None:
            verdicts[f"{planned.task}/{planned.store}"] = verdict
            self.workspace.write(replace(self.workspace.progress(), verdicts=dict(verdicts)))

        try:
            side_by_side(
                lambda planned: self._one(
                    builder, found[TaskId.parse(planned.task)], plan, planned, known, should_continue
                ),
                plan.stores,
                self.context.clients.settings.restore_threads,
                on_failure=lambda _: failed.set(),
                on_result=verified,
            )
        finally:
            shutil.rmtree(recomputed, ignore_errors=True)
        if not should_continue():
            raise RestoreSuspended("aborted")
        return verdicts

    def _recompute(
        self, plan: RestorePlan, found: Mapping[TaskId, Found], folder: Path, should_continue: Callable[[], bool]
    ) -> None:
        """Compute the tasks' state again, up to the committed offsets of each."""
        self.report("processing the source topics from their start")
        candidates = {
            task: self.context.evidence.candidates(
                found[task], SourceOfState.SOURCE, stores=[s.store for s in plan.stores if s.task == name]
            )
            for name in plan.tasks
            for task in [TaskId.parse(name)]
        }
        ends = {task: one.committed.next_offsets for task, one in candidates.items() if one is not None}
        work = Recomputation(self.context.plan, frozenset(s.store for s in plan.stores), ends, folder)
        recompute(work, self.context.clients.settings, self.listener, should_continue)
        self.probe("restore-recomputed")

    def _one(
        self,
        builder: StoreBuilder,
        found: Found,
        plan: RestorePlan,
        planned: StoreRestore,
        known: Mapping[str, StoreVerification],
        should_continue: Callable[[], bool],
    ) -> StoreVerification:
        """Build one store and compare it with its changelog. Raises `StartRefused` if a key differs."""
        name, facts = f"{planned.task}/{planned.store}", found.facts
        folder = folder_of(self.workspace.built, facts.task, planned.store)
        spec = self.context.evidence.buildable(facts.task).get(planned.store)
        if spec is None:
            raise StartRefused(f"task {facts.task} no longer has the store {planned.store}; make a new plan")
        candidates = self.context.evidence.candidates(
            found, planned.source, stores=[planned.store], rates=plan.rates, planned=planned.location
        )
        if candidates is None:
            raise StartRefused(_lost(facts.task, "the plan was made"))
        if name in known and _is_level(folder, candidates.committed):
            return known[name]
        location = candidates.candidates[planned.store].location
        if location != planned.location:
            self.report(f"store {name}: {planned.location} can no longer be used; {location} is taken instead")

        def pass_over(error: CopyUnusable) -> None:
            if plan.asked is not None:
                raise StartRefused(f"store {name}: {error}; make a new plan without --from") from error
            self.report(f"store {name}: {error}; the next source of state is tried")

        job = self.context.rebuilder.build(
            builder, found, candidates, spec, folder, should_continue, pass_over, rates=plan.rates
        )
        self.probe("restore-built")
        self.report(f"verifying {name} against its changelog")
        verdict = self.context.rebuilder.verify(facts.task, job, folder, should_continue)
        if not verdict.is_equal:
            kept = self.workspace.keep_differences(name, verdict.differences)
            raise StartRefused(
                f"{verdict.summary}, the first are in {kept}; the old state is in place; run with "
                "--from changelog, or, if the changelog is wrong: "
                f"`tidemark repair run NAME --store {spec.name} --from {planned.source.value}`"
            )
        return verdict

    def _forget_earlier(self) -> None:
        """Delete what earlier restores replaced, which is of no use once this one is in place, and end those left building."""
        state_dir, app, name = self.workspace.state_dir, self.context.plan.application_id, self.workspace.folder.name
        for left in unfinished(state_dir, app, but=name):
            # First, because without its folders it can neither be continued nor rolled back.
            left.finish(left.progress(), RestoreState.ABORTED, f"superseded by restore {name}")
        for earlier in workspaces(state_dir, app):
            if earlier.folder != self.workspace.folder:
                shutil.rmtree(earlier.previous, ignore_errors=True)
                earlier.drop_built()


def _is_level(folder: Path, committed: CommittedProgress) -> bool:
    """Whether a built store is up to date with the last commit. The batch counts too: a tick moves no offset."""
    try:
        checkpoint = read_store_checkpoint(folder)
    except TaskCorrupted:
        return False
    return (
        checkpoint is not None
        and checkpoint.batch == committed.batch
        and dict(checkpoint.source_offsets) == dict(committed.next_offsets)
    )


def _lost(task: TaskId, since: str) -> str:
    return f"task {task} has lost its commit record and offsets since {since}; make a new plan"
