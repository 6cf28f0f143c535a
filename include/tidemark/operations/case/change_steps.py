"""The steps of an upgrade, a rescale, a reset or a repair that read an application or change it. Each may be run again.

The order that a DAG keeps: preflight, plan, (a user approves), (the instances are stopped under a hold), change, (the
hold is released), (the lag drains). The steps in brackets are not part of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemark.errors import StartRefused
from tidemark.failpoint import Probe
from tidemark.operations.case.approval import PlanApproval
from tidemark.operations.case.case import CaseFolder
from tidemark.operations.case.plan import START_STOP_S, head, tail
from tidemark.operations.case.plan_hash import plan_content
from tidemark.operations.case.preflight import instances_here, require_all_here, require_nothing_else
from tidemark.operations.change.current_state import ApplicationState, described, read_application_state
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.repair_plan import RepairPlan
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.operations.change.reset import Reset
from tidemark.operations.change.reset_plan import ResetPlan, parse_offsets
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.upgrade import Upgrade
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.operations.clients import Clients
from tidemark.operations.drill_history.history import drill_history
from tidemark.operations.times import parse_time
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.compatibility import StoreChangeKind
from tidemark.registry.description import Description
from tidemark.restore.listener import RestoreListener
from tidemark.settings import Settings
from tidemark.temporary_folder import temporary_folder
from tidemark.topology.plan import TopologyPlan

UPGRADE, RESCALE, RESET, REPAIR = "upgrade", "rescale", "reset", "repair"

_LATEST = [
    "- `latest` is the end when the change is made, with all instances stopped: records that arrive until then and are not "
    "processed by then are never processed either"
]

BEST = "best"
"""The value of a repair's parameter `source` that leaves the choice to the plan."""

AnyPlan = UpgradePlan | RescalePlan | ResetPlan | RepairPlan


@dataclass(frozen=True)
class Changing:
    """The steps of one case. `topology` is the deployed one; `clock` returns epoch milliseconds."""

    topology: TopologyPlan
    settings: Settings
    folder: CaseFolder
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]
    clock: Callable[[], int]

    def preflight(self) -> None:
        """Check whether a change could run at all. Changes nothing. Raises `PreflightFailed`, `StartRefused`, `TaskLocked`."""
        clients, app = self._clients(), self.topology.application_id
        found = self._read_state(clients)
        require_all_here(clients, app)
        require_nothing_else(clients, app, self.folder.case())
        waiting = sum(found.waiting.values())
        running = len(instances_here(self.settings, app))
        self.report(f"{len(found.found)} tasks, {waiting} source offsets are unread; {running} instances run here")

    def plan(self) -> str:
        """Return what would be done, as Markdown, and store it. Changes nothing.

        Raises `StartRefused` if the change is refused. A plan whose work has begun stays as it was approved.
        """
        if self._approval.is_used:
            return str(self.folder.read("plan.json")["summary"])
        work = self._work(())
        if isinstance(work, Upgrade):
            name = f"{self.topology.application_id}-{UPGRADE}"
            with temporary_folder(self.settings.state_dir, name) as folder:
                made: AnyPlan = work.show(folder)
        else:
            made = work.show()
        if isinstance(made, UpgradePlan):
            made.require_possible()
        case, found = self.folder.case(), self._read_state(self._clients())
        history = drill_history(self.settings, self.topology)
        eta_s = START_STOP_S + 2 * changelog_offsets(found, rewritten(made)) / history.rates.changelog_offsets_per_s
        content = self._content(made, found.description)
        lines = [
            *head(case, self.topology),
            f"- **Standstill**: about {eta_s:.0f} s (estimate). {sum(found.waiting.values())} source offsets wait already, and "
            "more come meanwhile.",
            f"- **Rates**: {history.summary}.",
            "- **It cannot be rolled back** once it is committed, in one transaction.",
            "",
            *summary(made),
            *(_LATEST if isinstance(made, ResetPlan) and made.to is ResetTo.LATEST else []),
            *tail(content),
        ]
        # The target `time` could mean other offsets by the time of the approval.
        offsets = made.targets if isinstance(made, ResetPlan) and made.to is ResetTo.TIME else []
        plan = {"summary": "\n".join(lines), "eta_s": eta_s, "offsets": offsets, "content": content}
        self.folder.write("plan.json", plan)
        return "\n".join(lines)

    def change(self) -> None:
        """Do what was approved, to the offsets of the plan, with all instances stopped. Uses the kept answer.

        If the change was committed before, only cleans up. Raises what the change's own `run` raises, and
        `StartRefused` if this plan was not approved, or the present plan differs.
        """
        approval = self._approval
        if approval.is_done:
            self.report("this case is done: nothing is changed again")
            return
        approval.require()
        approval.require_topology(self.topology)
        answer = approval.use()
        work = self._work(self.folder.read("plan.json")["offsets"])
        if isinstance(work, Reset):
            work = replace(work, since_ms=answer.used_ms)
        work.run(self._is_approved)
        approval.finish()

    def _is_approved(self, made: AnyPlan) -> bool:
        """Return True.

        Raises `StartRefused`, which says what differs, if the plan made with all instances fenced is another one.
        """
        self._approval.require_content(self._content(made, described(self._clients(), self.topology)))
        for line in summary(made):
            self.report(line)
        return True

    @property
    def _approval(self) -> PlanApproval:
        return PlanApproval(self.folder, self.settings)

    def _content(self, made: AnyPlan, description: Description) -> dict[str, Any]:
        return plan_content(self.folder.case(), self.topology, description, effects(made))

    def _clients(self) -> Clients:
        return Clients.of(self.settings, self.clock)

    def _read_state(self, clients: Clients) -> ApplicationState:
        may_be_gone = self.folder.case().kind in (RESET, REPAIR)
        return read_application_state(clients, self.topology, may_be_gone=may_be_gone)

    def _work(self, offsets: list[str] | tuple[()]) -> Upgrade | Rescale | Reset | Repair:
        case = self.folder.case()
        common = (self.listener, self.probe, self.report)
        if case.kind == UPGRADE:
            declared = (case.asked["rename"], case.asked["drop"], case.asked["add"])
            return Upgrade(self.topology, self.settings, self.clock, *declared, *common)
        if case.kind == RESCALE:
            return Rescale(self.topology, self.settings, self.clock, case.asked["tasks"], *common)
        if case.kind == REPAIR:
            source = None if case.asked["source"] == BEST else SourceOfState(case.asked["source"])
            return Repair(self.topology, self.settings, self.clock, case.asked["stores"], source, *common)
        if case.kind != RESET:
            raise ValueError(f"there is no change called {case.kind}")
        to = ResetTo.OFFSETS if offsets else ResetTo(case.asked["to"])
        given = parse_offsets(offsets or case.asked["offsets"])
        try:
            at_ms = parse_time(case.asked["time"], case.asked_ms) if to is ResetTo.TIME else None
        except ValueError as error:
            raise StartRefused(f"time: {error}") from error
        state = StateAfter(case.asked["state"])
        return Reset(self.topology, self.settings, self.clock, to, state, given, at_ms, *common)


def summary(made: AnyPlan) -> list[str]:
    """Return what happens to the application, one line of Markdown each."""
    if isinstance(made, UpgradePlan):
        return [
            f"{made.application_id}: version {made.from_version} to {made.to_version}",
            "",
            *(f"- `{c.name}` is {c.change_kind}: {c.why}" for c in made.changes),
            *(f"- **lost**: {keys} keys of `{store}`" for store, keys in made.lost.items()),
            *(f"- {warning}" for warning in made.warnings),
        ]
    if isinstance(made, RescalePlan):
        return [
            f"{made.application_id}: {made.tasks} tasks instead of {sorted(set(made.before.values()))}",
            "",
            *(f"- `{store}`: every key to its new task" for store in made.stores),
            *(f"- {warning}" for warning in made.warnings),
        ]
    if isinstance(made, RepairPlan):
        return [
            f"{made.application_id}: changelogs are compared with copies of their stores",
            "",
            *(
                f"- `{t.task}/{s.store}`, compared with {t.location if t.is_judge else 'nothing'}: `{s.changelog}` {s.summary}"
                for s in made.stores
                for t in s.tasks
            ),
            *(f"- {warning}" for warning in made.warnings),
        ]
    return [
        f"{made.application_id}: offsets to {made.to}, state: {made.state}",
        "",
        *(f"- `{s.partition}`: {s.from_offset} to {s.to_offset}" for s in made.sources),
        *(f"- {warning}" for warning in made.warnings),
    ]


def effects(made: AnyPlan) -> dict[str, Any]:
    """Return what a change does, without what varies while the application runs: the lag, numbers of keys, offsets reached.

    An approval of a reset is bound to the offsets asked for, and to whether anything is processed again or never. The
    beginning of a partition is not named by its offset, because retention moves it. Nor is its end, because an application
    that keeps up would be past that offset: the approval covers whatever is unread when the reset is made. The approval of a
    repair is bound to the copies that decide what is right, because nothing was compared when it was approved.
    """
    if isinstance(made, UpgradePlan):
        versions = {"from_version": made.from_version, "to_version": made.to_version}
        return {**versions, "stores": made.changes, "left": made.left}
    if isinstance(made, RescalePlan):
        tasks = {"tasks": made.tasks, "tasks_before": made.before, "routers": made.routers}
        return {**tasks, "stores": made.stores, "left": made.left}
    if isinstance(made, RepairPlan):
        held_to = {
            f"{task.task}/{store.store}": task.location if task.is_judge else None
            for store in made.stores
            for task in store.tasks
        }
        return {"held_to": held_to}
    own = [source for source in made.sources if not source.is_internal]
    moves = made.to in (ResetTo.EARLIEST, ResetTo.LATEST)
    return {
        "offsets": {str(source.partition): made.to if moves else source.asked_offset for source in own},
        "internal_partitions": sorted(str(source.partition) for source in made.sources if source.is_internal),
        "state": made.state,
        "rewritten": made.rewritten,
        "emptied": made.emptied,
        "processes_again": any(source.again for source in own),
        "passes_over": made.to is ResetTo.LATEST or any(source.skipped for source in own),
    }


def rewritten(made: AnyPlan) -> set[str]:
    """Return the stores, by their present name, of which every key is read and written again."""
    if isinstance(made, UpgradePlan):
        return {change.was for change in made.changes if change.change_kind is StoreChangeKind.COPIED}
    if isinstance(made, RepairPlan):
        return {store.store for store in made.stores}
    return set(made.stores if isinstance(made, RescalePlan) else made.rewritten)


def changelog_offsets(found: ApplicationState, stores: set[str]) -> int:
    """Return the length of the changelogs of these stores in offsets, over all tasks."""
    return sum(
        marks.end - marks.low
        for each in found.found.values()
        for store, marks in each.facts.changelogs.items()
        if store in stores
    )
