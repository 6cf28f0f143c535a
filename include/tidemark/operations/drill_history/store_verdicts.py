"""The verdicts of drills on each live store: whether it equals its changelog, and since when that is in doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.database import FactsDatabase
from tidemark.names import TaskId
from tidemark.operations.change.repaired_stores import repaired_ms
from tidemark.operations.drill_history.report import RebuildMethod
from tidemark.operations.drill_history.table import past_drills
from tidemark.operations.rewind.rewind import finished_rewinds
from tidemark.operations.times import format_time
from tidemark.operations.workspace import RestoreState, workspaces
from tidemark.settings import Settings
from tidemark.supervision.savepoint_ids import begun_ms
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import TopologyPlan
from tidemark.verdict import Verdict

Name = tuple[TaskId, str]
"""A task and one of its stores."""

_JUDGING = (RebuildMethod.CHANGELOG, RebuildMethod.FOLLOWED)
"""The ways that begin with the changelog alone, in the order in which a drill compares them.

A difference found from an older savepoint may be that savepoint's fault.
"""


@dataclass(frozen=True)
class DrillVerdict:
    """The verdict on a live store of the newest drill that could compare it. Times are epoch milliseconds.

    `verdict` is OK if no key differs between the live store and its changelog, otherwise FAILED with the number of
    `differing` keys: one of the two is wrong, and a drill cannot tell which. `savepoints` are those of the drill that it
    judged, which are copies of the live store, the oldest first. `right_ms` is the last time at which the store is
    known to have been right: the beginning of the newest savepoint that a drill found equal, or the end of the last
    restore that verified it; None if there was none.
    """

    drill_id: str
    ended_ms: int
    verdict: Verdict
    differing: int
    savepoints: tuple[str, ...]
    right_ms: int | None

    @property
    def is_suspect(self) -> bool:
        """Whether copies of the live store are taken only if an operator asks for them."""
        return self.verdict is Verdict.FAILED

    def suspects_savepoint(self, savepoint_id: str) -> bool:
        """Whether a savepoint is of a suspected store, because it was begun after the store was last known to be right."""
        if not self.is_suspect or self.right_ms is None:
            return self.is_suspect
        began_ms = begun_ms(savepoint_id)
        return began_ms is None or began_ms > self.right_ms

    @property
    def summary(self) -> str:
        """The reason, as a clause that follows a copy's name."""
        return (
            f"is suspected: the drill {self.drill_id} ({format_time(self.ended_ms)}) found {self.differing} keys that differ "
            "between it and its changelog"
        )


def last_verdicts(settings: Settings, topology: TopologyPlan) -> dict[Name, DrillVerdict]:
    """Return the newest drill's verdict on the live store of every task and store.

    `topology` is the plan with the stores' generations, as in `OperationContext.plan`: a drill of an earlier generation says
    nothing about the present store. A drill that could not compare a store (it could not be rebuilt, or the changelog
    was read too late) is passed over for an older one, however old. The result lacks a store that no drill has judged, and
    one that, since its drill ended, a restore has verified and replaced, a rewind has replaced, or a repair has written to
    its changelog. Blocks: reads the database of facts and `<state_dir>`. Raises `FactsUnavailable`.
    """
    layouts = _layouts(topology)
    facts = FactsDatabase(settings)
    try:
        past = past_drills(facts, topology.application_id, limit=None)
        reports = list(_until_all_were_equal((drill.report for drill in past), layouts))
    finally:
        facts.close()
    return verdicts_of(reports, layouts, _replaced_ms(settings, topology.application_id, layouts))


def verdicts_of(
    reports: Iterable[Mapping[str, Any]],
    layouts: Mapping[tuple[int, str], str],
    replaced_ms: Mapping[Name, Iterable[int]],
) -> dict[Name, DrillVerdict]:
    """Do `last_verdicts` for drill reports as JSON, in any order. Reads nothing.

    `layouts` are the present value signatures of the stores, by sub-topology and store; `replaced_ms` says when a store
    was replaced by one that is known to be right.
    """
    found: dict[Name, DrillVerdict] = {}
    for report in sorted(reports, key=lambda report: int(report["ended_ms"])):
        for name, judged in _judged(report, layouts).items():
            differing = int(judged[-1]["differing"])
            savepoints: dict[bool, list[str]] = {bool(store["differing"]): [] for store in judged}
            for store in judged:
                savepoints[bool(store["differing"])].append(str(store["savepoint_id"]))
            known = [at_ms for at_ms in replaced_ms.get(name, ()) if at_ms <= report["started_ms"]]
            if name in found and (earlier := found[name].right_ms) is not None:
                known.append(earlier)
            known += [at_ms for at_ms in map(begun_ms, savepoints.get(False, ())) if at_ms is not None]
            found[name] = DrillVerdict(
                drill_id=report["drill_id"],
                ended_ms=report["ended_ms"],
                verdict=Verdict.FAILED if differing else Verdict.OK,
                differing=differing,
                savepoints=tuple(savepoints[bool(differing)]),
                right_ms=max(known, default=None),
            )
    return {
        name: verdict
        for name, verdict in found.items()
        if all(at_ms <= verdict.ended_ms for at_ms in replaced_ms.get(name, ()))
    }


def _until_all_were_equal(
    reports: Iterable[Mapping[str, Any]], layouts: Mapping[tuple[int, str], str]
) -> Iterator[Mapping[str, Any]]:
    """Yield drill reports, which come the newest first, until each store was found equal in one. Older ones change nothing."""
    named: set[Name] = set()
    equal: set[Name] = set()
    for report in reports:
        yield report
        named |= {name for store in report["stores"] if _key(name := _name(store)) in layouts}
        for name, judged in _judged(report, layouts).items():
            if not all(store["differing"] for store in judged):
                equal.add(name)
        if named <= equal and layouts.keys() <= {_key(name) for name in equal}:
            return


def undrilled(report: Mapping[str, Any], topology: TopologyPlan, tasks: Iterable[TaskId]) -> list[str]:
    """Return the stores of `tasks`, as `task/store`, that a drill has not compared as they are now. Reads nothing.

    `report` is the drill's report as JSON. `topology` is the plan with the stores' generations: an upgrade, a rescale and a
    reset begin changelogs about which an earlier drill says nothing.
    """
    judged = _judged(report, _layouts(topology))
    return [
        f"{task}/{spec.name}"
        for task in tasks
        for spec in topology.subtopologies[task.subtopology].stores
        if spec.uncopied is None and (task, spec.name) not in judged
    ]


def _judged(report: Mapping[str, Any], layouts: Mapping[tuple[int, str], str]) -> dict[Name, list[Mapping[str, Any]]]:
    """Return the comparisons that judge a store, by store, the last one last."""
    judged: dict[Name, list[Mapping[str, Any]]] = {}
    for store in report["stores"]:
        name = _name(store)
        is_now = store.get("value_layout") == layouts.get(_key(name))
        differs = store["verdict"] == Verdict.FAILED and store["differing"] > 0
        if store["way"] in _JUDGING and is_now and (differs or store["verdict"] == Verdict.OK):
            judged.setdefault(name, []).append(store)
    return {name: sorted(stores, key=lambda store: _JUDGING.index(store["way"])) for name, stores in judged.items()}


def _name(store: Mapping[str, Any]) -> Name:
    return TaskId.parse(store["task"]), store["store"]


def _key(name: Name) -> tuple[int, str]:
    """Return the store's sub-topology and name, which are the same for all tasks."""
    return name[0].subtopology, name[1]


def _layouts(topology: TopologyPlan) -> dict[tuple[int, str], str]:
    """Return the value signatures of all stores that a drill compares, by sub-topology and store."""
    return {
        (number, spec.name): value_signature(spec, value_layouts(subtopology)[spec.name])
        for number, subtopology in enumerate(topology.subtopologies)
        for spec in subtopology.stores
        if spec.uncopied is None
    }


def _replaced_ms(settings: Settings, application_id: str, stores: Iterable[tuple[int, str]]) -> dict[Name, list[int]]:
    """Return the times at which each store was made or found right.

    A restore has verified and replaced it, a rewind has replaced all `stores` of its task, or a repair has compared it.
    """
    found: dict[Name, list[int]] = {
        name: [at_ms] for name, at_ms in repaired_ms(settings.state_dir, application_id).items()
    }
    for workspace in workspaces(settings.state_dir, application_id):
        progress = workspace.progress()
        if progress.state is not RestoreState.DONE:
            continue
        for verdict in (progress.verdicts or {}).values():
            if verdict.is_equal and verdict.is_proven:
                found.setdefault((TaskId.parse(verdict.task), verdict.store), []).append(progress.ended_ms)
    for done in finished_rewinds(settings.state_dir, application_id):
        for task in map(TaskId.parse, done.batches):
            for number, store in stores:
                if number == task.subtopology:
                    found.setdefault((task, store), []).append(done.commit_time_ms)
    return found
