"""The steps of a restore that read an application or change it. Each may be run again after it was killed.

The order that a DAG keeps: preflight, plan, (a user approves), (the instances are stopped under a hold), restore,
verify, swap, (the hold is released), (the lag drains); `roll_back` if a step up to the swap fails. The steps in
brackets are not part of this module. Once the state is swapped in, the case is done: no step changes anything again,
and nothing is rolled back.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.commit.history import commit_history
from tidemark.commit.record import CommitKind
from tidemark.errors import StartRefused, TaskLocked
from tidemark.failpoint import Probe
from tidemark.folder_lock import is_locked
from tidemark.kafka.committed_reader import stalled_after
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.case.approval import PlanApproval
from tidemark.operations.case.case import DONE, CaseFolder
from tidemark.operations.case.drain import source_lag
from tidemark.operations.case.plan import PlanKind, Planned, planned_restore, planned_rewind, restore_content
from tidemark.operations.case.preflight import instances_here, require_all_here, require_nothing_else
from tidemark.operations.case.target import Latest, PointInTime, Target, moment_of_offsets, parse_target
from tidemark.operations.context import OperationContext
from tidemark.operations.disk_space import require_room
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.rewind.build import PointInTimeBuilder
from tidemark.operations.rewind.plan import RewindPlan, require_rewindable
from tidemark.operations.rewind.rewind import REWINDS_FOLDER, Rewind, RewindState
from tidemark.operations.workspace import RestoreState, Workspace
from tidemark.processes import wait_until
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.recovery.selection import Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.bounds import overall, total
from tidemark.restore.listener import RestoreListener
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.restore.restorer import RestoreSuspended
from tidemark.stores.directory import folder_of

FASTEST = "fastest"
"""The value of a case's parameter `source` that leaves the choice to the plan."""
_ENDS_WITHIN_S = 60.0
"""The wait for a process that was asked to end: it checks that between two batches of records."""


@dataclass(frozen=True)
class OnCall:
    """The steps of one case. `restoring` uses all kinds of copies, `rewinding` only those that do not advance."""

    restoring: OperationContext
    rewinding: OperationContext
    folder: CaseFolder
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]

    @property
    def _application_id(self) -> str:
        return self.restoring.plan.application_id

    def preflight(self) -> None:
        """Check whether a restore could run at all. Changes nothing. Raises `PreflightFailed`, `StartRefused`, `TaskLocked`."""
        if self._is_done():
            return
        case, context = self.folder.case(), self.restoring
        target = self._target()
        if not isinstance(target, Latest):
            self._require_all()
            require_rewindable(context.plan)
        facts = context.evidence.facts()
        if not any(found.record for found in facts.values()):
            raise StartRefused(f"{self._application_id} has never committed anything: there is nothing to restore")
        require_all_here(context.clients, self._application_id)
        require_nothing_else(context.clients, self._application_id, case)
        witnesses = context.evidence.witnesses
        if isinstance(target, Latest):
            made = make_plan(context.evidence, case.case_id, self._source, self._selection)
            require_room(witnesses, facts, made.stores)
        else:
            require_room(witnesses, facts, None, [self.folder.folder])
        lag = source_lag(facts)
        running = len(instances_here(context.clients.settings, self._application_id))
        self.report(f"{len(facts)} tasks, {lag} source offsets are unread; {running} instances run here")

    def plan(self) -> Planned:
        """Return what would be done, and store it. Changes nothing. Raises `StartRefused`.

        A plan whose work has begun stays as it was approved.
        """
        if self._approval.is_used:
            return self._planned()
        case, settings = self.folder.case(), self.restoring.clients.settings
        target = self._target()
        if isinstance(target, Latest):
            made = make_plan(self.restoring.evidence, case.case_id, self._source, self._selection)
            planned = planned_restore(case, self.restoring.plan, made, settings.restore_threads)
        else:
            self._require_all()
            at_ms = target.at_ms if isinstance(target, PointInTime) else self._moment_of(target.next_offsets)
            started = time.monotonic()
            # Built elsewhere than where the rewind itself will build.
            scratch = Workspace(self.folder.folder / "scratch", self._application_id, case.case_id, REWINDS_FOLDER)
            try:
                rewound = self._rewind(scratch).plan(at_ms)
            finally:
                shutil.rmtree(self.folder.folder / "scratch", ignore_errors=True)
            planned = planned_rewind(case, self.rewinding.plan, rewound, time.monotonic() - started)
        self.folder.write("plan.json", planned.to_dict())
        return planned

    def restore(self) -> None:
        """Build the state beside the old one, and compare every key with its changelog.

        A rewind is also committed and swapped in. All instances must be stopped. Uses the kept answer. Raises what
        `RestoreRun.prepare` and `Rewind.run` raise, and `StartRefused` if this plan was not approved.
        """
        if self._is_done():
            return
        planned, approval = self._planned(), self._approval
        approval.require()
        approval.require_content(self._content(planned.kind, planned.plan))
        approval.use()
        if planned.kind is PlanKind.REWIND:
            self._run_rewind(planned)
            return
        workspace = self._workspace
        if not (workspace.folder / "plan.json").exists():
            workspace.create(RestorePlan.from_json(json.dumps(planned.plan)))
        begun = json.loads(workspace.plan().to_json())
        approval.require_content(self._content(planned.kind, begun))
        if workspace.progress().state is RestoreState.DONE:
            self.report("the state has already been built, verified and swapped in")
            return
        try:
            self._restore_run().prepare()
        except RestoreSuspended as error:
            raise StartRefused(f"restore {workspace.folder.name} was aborted; the old state is in place") from error

    def verify(self) -> None:
        """Check the evidence: every planned store was compared, is equal, and is up to date with the last commit."""
        if self._is_done():
            return
        planned = self._planned()
        facts = self.restoring.evidence.facts()
        if planned.kind is PlanKind.REWIND:
            self._verify_rewind(planned, facts)
            return
        workspace = self._workspace
        progress, plan = workspace.progress(), workspace.plan()
        verdicts = progress.verdicts or {}
        behind = 0
        for store in plan.stores:
            name = f"{store.task}/{store.store}"
            verdict = verdicts.get(name)
            if verdict is None or not verdict.is_equal:
                raise StartRefused(f"store {name} of restore {workspace.folder.name} was not verified: make a new plan")
            folder = folder_of(workspace.built, TaskId.parse(store.task), store.store)
            checkpoint = read_store_checkpoint(folder) if folder.exists() else None
            if checkpoint is not None:
                behind += _behind(facts[TaskId.parse(store.task)], checkpoint.source_offsets)
        figures = [verdict.figures for verdict in verdicts.values()]
        found, evidence = total(figures), overall(figures)
        checksums = {name: verdict.checksum for name, verdict in verdicts.items()}
        self.folder.note(
            "verify", "figures", keys=found.compared, left_out=found.left_out, differing=found.differing,
            evidence=str(evidence), rpo_offsets=behind, rpo_s=0.0, checksums=checksums,
        )  # fmt: skip
        if outdated := self._restore_run().outdated(facts):
            raise StartRefused(
                f"{behind} source offsets were committed after the state was built, and the last batch is not in "
                f"{', '.join(outdated)}: an instance ran meanwhile; make a new plan"
            )
        self.report(
            f"{evidence}: of {len(plan.stores)} stores, {found.summary}; they are up to date with the last commit"
        )

    def figures(self) -> list[dict[str, Any]]:
        """Return the keys compared, left out and differing, per store; empty for a rewind, which compares while it is built."""
        return [
            {
                "task": verdict.task,
                "store": verdict.store,
                "verdict": str(verdict.figures.verdict),
                "compared": verdict.compared,
                "left_out": verdict.left_out,
                "differing": verdict.different,
            }
            for verdict in (self._workspace.progress().verdicts or {}).values()
        ]

    def swap(self) -> None:
        """Put the verified state in place, which completes what was approved. Raises what `RestoreRun.swap` raises."""
        if self._is_done():
            return
        if self._planned().kind is PlanKind.REWIND:
            if self._rewind(self._rewind_workspace).state is not RewindState.DONE:
                raise StartRefused(
                    "the rewind is committed but not in place: clear the task `fence` with all downstream tasks, "
                    "which finishes it"
                )
        elif self._workspace.progress().state is not RestoreState.DONE:
            self._approval.use()
            self._restore_run().swap()
        self._approval.finish()

    def is_over(self) -> str | None:
        """Return why there is nothing to roll back, so that nothing needs to be stopped for it; None if there may be something.

        A verified state that is in place is kept: a later failure (a slow relaunch) is not a fault of the state.
        """
        approval = self._approval
        if approval.is_closed:
            return "the old state has already been brought back, and is in place"
        if not approval.is_done and self._is_in_place():
            # It was killed between the swap and the note of it.
            approval.finish()
        return (
            "the new state is verified and in place: it is kept, nothing is rolled back" if approval.is_done else None
        )

    def roll_back(self) -> str:
        """Bring the earlier state back, with all instances stopped. Returns what was done, in one line.

        What is in place and verified is kept, see `is_over`. Blocks until a process that still works on the restore, such as
        a try whose worker was lost, has ended. Raises `TaskLocked` if it does not end in time, and `StartRefused` for a
        rewind that is committed.
        """
        self._end_other_process()
        if (over := self.is_over()) is not None:
            return over
        if not self.folder.holds("plan.json"):
            return "nothing was planned, nothing was changed"
        if self._planned().kind is PlanKind.REWIND:
            return self._roll_back_rewind()
        workspace = self._workspace
        if not (workspace.folder / "plan.json").exists():
            return "nothing was begun, the old state is in place"
        progress = workspace.progress()
        if progress.state in (RestoreState.SWAPPING, RestoreState.ROLLING_BACK) and progress.moves:
            progress = self._restore_run().roll_back()
        if progress.state is RestoreState.ROLLED_BACK:
            return "; ".join(
                summary for summary in ("the old state folders are back in place", progress.message) if summary
            )
        summary = workspace.abort()
        if workspace.progress().state is not RestoreState.ABORTED:
            raise TaskLocked(f"{summary}, but has not ended: nothing is rolled back yet; the next try looks again")
        return summary

    def _end_other_process(self) -> None:
        """Ask another process that works on the restore to end, and wait until it has. Raises `TaskLocked`."""
        workspace = self._workspace
        if not is_locked(workspace.folder):
            return
        if workspace.progress().state in (RestoreState.PLANNED, RestoreState.BUILDING):
            self.report(workspace.abort())
        if not wait_until(lambda: not is_locked(workspace.folder), _ENDS_WITHIN_S):
            raise TaskLocked(
                f"a process still works on restore {workspace.folder.name} {_ENDS_WITHIN_S:.0f} s after it was asked to end: "
                "nothing is rolled back yet; the next try looks again"
            )

    def _is_done(self) -> bool:
        """Whether no step has anything left to do; if so, reports that."""
        if self._approval.is_done:
            self.report("this case is done: nothing is changed again")
        return self._approval.is_done

    def _is_in_place(self) -> bool:
        """Whether the verified state of a restore is swapped in.

        Always False for a rewind, which is over once its evidence is checked.
        """
        if not self.folder.holds("plan.json") or self._planned().kind is PlanKind.REWIND:
            return False
        return self._workspace.progress().state is RestoreState.DONE

    def _roll_back_rewind(self) -> str:
        state = self._rewind(self._rewind_workspace).state
        if state is None:
            shutil.rmtree(self._rewind_workspace.folder, ignore_errors=True)
            return "nothing was committed, the old state is in place"
        raise StartRefused(
            "the rewind may be committed and cannot be taken back: clear the task `fence` with all downstream tasks, "
            f"which finishes it, or `tidemark restore run {self.folder.case().topology}` rebuilds the state that Kafka "
            "has"
        )

    @property
    def _source(self) -> SourceOfState | None:
        """The only source of state that was asked for; None if the plan chooses."""
        asked = self.folder.case().asked["source"]
        return None if asked == FASTEST else SourceOfState(asked)

    @property
    def _selection(self) -> Selection:
        """The tasks and stores that were asked for."""
        asked = self.folder.case().asked
        return Selection.of(asked.get("tasks", ()), asked.get("stores", ()))

    def _require_all(self) -> None:
        """Raise `StartRefused` if a part of the application is selected, because a rewind is of the whole application."""
        if not self._selection.is_all:
            raise StartRefused(
                f"cannot rewind {self._selection.summary} alone to {self.folder.case().asked['target']}: all tasks go back "
                "together, in one transaction with their source offsets; leave tasks and stores empty, or restore to latest"
            )

    def _target(self) -> Target:
        case = self.folder.case()
        try:
            return parse_target(case.asked["target"], case.asked_ms)
        except ValueError as error:
            raise StartRefused(f"target: {error}") from error

    def _moment_of(self, wanted: Mapping[TopicPartition, int]) -> int:
        clients, tasks = self.rewinding.clients, self.rewinding.evidence.tasks()
        after_s = stalled_after(clients.settings)
        records = commit_history(
            clients.client_config, clients.ends, self._application_id, tasks, stalled_after_s=after_s
        )
        return moment_of_offsets(records, wanted)

    def _planned(self) -> Planned:
        return Planned.from_dict(self.folder.read("plan.json"))

    @property
    def _approval(self) -> PlanApproval:
        return PlanApproval(self.folder, self.restoring.clients.settings)

    def _content(self, kind: PlanKind, plan: Mapping[str, Any]) -> dict[str, Any]:
        return restore_content(self.folder.case(), self.restoring.plan, kind, plan)

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.restoring.clients.settings.state_dir, self._application_id, self.folder.case().case_id)

    @property
    def _rewind_workspace(self) -> Workspace:
        state_dir, case_id = self.rewinding.clients.settings.state_dir, self.folder.case().case_id
        return Workspace(state_dir, self._application_id, case_id, REWINDS_FOLDER)

    def _restore_run(self) -> RestoreRun:
        return RestoreRun(self.restoring, self._workspace, self.listener, self.probe, self.report)

    def _rewind(self, workspace: Workspace) -> Rewind:
        builder = PointInTimeBuilder(self.rewinding, self.listener, self.probe, self.report)
        return Rewind(builder, workspace, self.probe, self.report)

    def _run_rewind(self, planned: Planned) -> None:
        rewind = self._rewind(self._rewind_workspace)
        # A later rewind deletes the folder of this one.
        if rewind.state is RewindState.DONE or self.folder.has("restore", DONE) or planned.at_ms is None:
            return

        def require_approved(made: RewindPlan) -> bool:
            self._approval.require_content(self._content(planned.kind, asdict(made)))
            return True

        rewind.run(planned.at_ms, require_approved)

    def _verify_rewind(self, planned: Planned, facts: Mapping[TaskId, TaskFacts]) -> None:
        offsets, seconds = 0, 0.0
        for task in planned.plan["tasks"]:
            record = facts[TaskId.parse(task["task"])].record
            if record is None or record.kind is not CommitKind.REWIND or record.rewound_to != task["to_batch"]:
                raise StartRefused(
                    f"task {task['task']} is not at batch {task['to_batch']}: see `tidemark inspect NAME`"
                )
            offsets += sum(at - task["to_offsets"][topic] for topic, at in task["from_offsets"].items())
            seconds = max(seconds, (self.folder.case().asked_ms - task["to_ms"]) / 1000)
        self.folder.note("verify", "figures", rpo_offsets=offsets, rpo_s=seconds)
        self.report(f"every task is at the batch that was approved, {offsets} source offsets back")


def _behind(found: TaskFacts, source_offsets: Mapping[str, int]) -> int:
    return sum(max(0, c.offset - source_offsets.get(p.topic, 0)) for p, c in found.committed.items())
