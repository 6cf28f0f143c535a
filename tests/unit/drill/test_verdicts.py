"""The verdict on a live store: that of the newest drill that could judge it, until the store is replaced."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest

from tidemark.database import FactsDatabase
from tidemark.names import TaskId
from tidemark.operations.change.repaired_stores import note_repaired
from tidemark.operations.drill_history.report import DrillReport, RebuildMethod, StoreDrill
from tidemark.operations.drill_history.store_verdicts import last_verdicts, undrilled, verdicts_of
from tidemark.operations.drill_history.table import last_passed, write_drill
from tidemark.operations.rewind.rewind import RewindProgress, RewindState
from tidemark.operations.workspace import RestoreState, Workspace, WorkspaceProgress, new_id
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.registry.description import with_generations
from tidemark.restore import verify
from tidemark.settings import Settings
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.builder import Topology
from tidemark.topology.plan import Guarantee
from tidemark.verdict import Verdict

HOUR = 3_600_000
NOW = 1_790_000_000_000
TASK, OTHER = TaskId(0, 1), TaskId(0, 0)
LAYOUT = "1:count"
LAYOUTS = {(0, "n"): LAYOUT}


def savepoint(at_ms):
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y%m%dT%H%M%S}-abcdef"


def compared(verdict=Verdict.OK, differing=0, way=RebuildMethod.CHANGELOG, at_ms=NOW, **more):
    made = StoreDrill(
        str(TASK), "n", way, savepoint(at_ms), verdict, "summary", compared=4, differing=differing, value_layout=LAYOUT
    )
    return replace(made, **more)


def drill(at_ms, *stores):
    return DrillReport(f"d{at_ms}", "app", "1", Guarantee.EXACTLY_ONCE, at_ms, at_ms + 60_000, (), stores, (), 3, 3, ())


def found(*reports, layouts=LAYOUTS, replaced=None):
    shuffled = [report.to_dict() for report in reports]
    random.shuffle(shuffled)
    return verdicts_of(shuffled, layouts, {(TASK, "n"): replaced or []})


def differs(at_ms, keys=3, way=RebuildMethod.CHANGELOG):
    return drill(at_ms, compared(Verdict.FAILED, keys, way, at_ms))


def equal(at_ms):
    return drill(at_ms, compared(at_ms=at_ms))


def test_should_report_what_the_newest_drill_found_about_the_live_store():
    (verdict,) = found(equal(NOW), differs(NOW + HOUR)).values()
    assert (verdict.drill_id, verdict.differing, verdict.is_suspect) == (f"d{NOW + HOUR}", 3, True)
    assert "found 3 keys that differ between it and its changelog" in verdict.summary
    assert verdict.drill_id in verdict.summary
    (verdict,) = found(differs(NOW), equal(NOW + HOUR)).values()
    assert (verdict.verdict, verdict.is_suspect, verdict.savepoints) == (Verdict.OK, False, (savepoint(NOW + HOUR),))


def test_should_suspect_the_store_when_the_later_comparison_differs():
    report = drill(NOW, compared(at_ms=NOW), compared(Verdict.FAILED, 2, RebuildMethod.FOLLOWED, NOW + 30_000))
    (verdict,) = found(report).values()
    assert (verdict.differing, verdict.savepoints) == (2, (savepoint(NOW + 30_000),))
    assert verdict.right_ms == NOW


def test_should_trust_the_later_comparison_when_the_store_was_repaired_meanwhile():
    second = savepoint(NOW + 30_000)
    report = drill(
        NOW, compared(Verdict.FAILED, 2, at_ms=NOW), compared(Verdict.OK, 0, RebuildMethod.FOLLOWED, NOW + 30_000)
    )
    (verdict,) = found(report).values()
    assert (verdict.verdict, verdict.savepoints, verdict.right_ms) == (Verdict.OK, (second,), NOW + 30_000)


@pytest.mark.parametrize(
    "unjudged",
    [
        compared(Verdict.FAILED, 0),  # it could not be rebuilt
        compared(Verdict.NOT_ENOUGH_EVIDENCE, 5),  # read too late to count
        compared(Verdict.NOT_ENOUGH_EVIDENCE, 0),
        compared(Verdict.FAILED, 5, RebuildMethod.SAVEPOINT),  # the older savepoint may be the wrong one
        compared(Verdict.FAILED, 5, value_layout="g1/1:count"),  # another generation
    ],
)
@pytest.mark.parametrize("known", [Verdict.OK, Verdict.FAILED])
def test_should_ignore_a_drill_that_could_not_judge(unjudged, known):
    newer = drill(NOW + HOUR, unjudged)
    assert found(newer) == {}
    (verdict,) = found(equal(NOW) if known is Verdict.OK else differs(NOW), newer).values()
    assert (verdict.drill_id, verdict.verdict) == (f"d{NOW}", known)


def test_should_forget_a_verdict_once_the_store_was_replaced():
    ended_ms = differs(NOW).ended_ms
    assert found(differs(NOW), replaced=[ended_ms])[TASK, "n"].is_suspect
    assert found(differs(NOW), replaced=[NOW - 1, ended_ms + 1]) == {}
    assert found(differs(NOW), differs(NOW + HOUR), replaced=[ended_ms + 1])[TASK, "n"].is_suspect


@pytest.mark.parametrize(
    ("earlier", "replaced", "right_ms"),
    [((), [], None), ((NOW,), [], NOW), ((NOW,), [NOW + 5000], NOW + 5000), ((), [NOW - 5000], NOW - 5000)],
)
def test_should_suspect_savepoints_that_began_after_the_store_was_last_known_correct(earlier, replaced, right_ms):
    (verdict,) = found(*map(equal, earlier), differs(NOW + HOUR), replaced=replaced).values()
    assert verdict.right_ms == right_ms
    for at_ms in (NOW - HOUR, NOW - 5000, NOW, NOW + 5000, NOW + 6000, NOW + 2 * HOUR):
        assert verdict.suspects_savepoint(savepoint(at_ms)) == (right_ms is None or at_ms > right_ms)
    assert verdict.suspects_savepoint("by hand")
    right = replace(verdict, verdict=Verdict.OK)
    assert not right.suspects_savepoint(savepoint(NOW + 2 * HOUR))


# --- as they are kept


@pytest.fixture
def settings(tmp_path):
    return Settings.load(var_dir=tmp_path / "var", state_dir=tmp_path / "state")


@pytest.fixture
def plan():
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n").to("out")
    return topology.plan()


def kept_drill(settings, plan, at_ms, differing, *, verdict=None, tasks=(TASK, OTHER)):
    layout = value_signature(plan.stores[0], value_layouts(plan.subtopologies[0])["n"])
    verdict = verdict or (Verdict.FAILED if differing else Verdict.OK)
    stores = [
        compared(verdict, differing, task=str(task), savepoint_id=savepoint(at_ms), value_layout=layout)
        for task in tasks
    ]
    facts = FactsDatabase(settings)
    write_drill(facts, drill(at_ms, *stores))
    facts.close()


def suspects(settings, plan):
    return {task for (task, _), verdict in last_verdicts(settings, plan).items() if verdict.is_suspect}


@pytest.mark.parametrize("later", [Verdict.NOT_ENOUGH_EVIDENCE, Verdict.FAILED])
@pytest.mark.parametrize("drills", [19, 20, 45])
def test_should_suspect_a_store_however_many_drills_could_not_judge_it_since(settings, plan, later, drills):
    kept_drill(settings, plan, NOW, 3)
    for number in range(1, drills + 1):
        kept_drill(settings, plan, NOW + number * HOUR, 0, tasks=(OTHER,))
        kept_drill(settings, plan, NOW + number * HOUR, 0, verdict=later, tasks=(TASK,))
    assert suspects(settings, plan) == {TASK}


@pytest.mark.parametrize("drills", [19, 20, 45])
def test_should_know_when_a_store_was_last_right_however_many_drills_found_it_different_since(settings, plan, drills):
    kept_drill(settings, plan, NOW, 0)
    for number in range(1, drills + 1):
        kept_drill(settings, plan, NOW + number * HOUR, 3)
    assert {verdict.right_ms for verdict in last_verdicts(settings, plan).values()} == {NOW}


def test_should_read_no_more_drills_than_can_change_a_verdict(settings, plan, monkeypatch):
    read, real = [], FactsDatabase.read

    def counting(self, *query):
        rows = real(self, *query)
        read.append(len(rows))
        return rows

    for number in range(60):
        kept_drill(settings, plan, NOW + number * HOUR, 0)
    monkeypatch.setattr(FactsDatabase, "read", counting)
    assert suspects(settings, plan) == set()
    assert read == [20]


@pytest.mark.parametrize(
    ("state", "different", "compared_keys", "clears"),
    [
        (RestoreState.DONE, 0, 4, True),
        (RestoreState.DONE, 0, 0, False),  # nothing could be compared
        (RestoreState.ROLLED_BACK, 0, 4, False),
        (RestoreState.SWAPPING, 0, 4, False),
        (RestoreState.FAILED, 1, 4, False),
    ],
)
def test_should_trust_drills_until_a_restore_has_verified_and_replaced_the_store(
    settings, plan, state, different, compared_keys, clears
):
    assert last_verdicts(settings, plan) == {}
    kept_drill(settings, plan, NOW, 3)
    assert suspects(settings, plan) == {TASK, OTHER}
    workspace = Workspace(settings.state_dir, "app", new_id())
    workspace.create(RestorePlan(workspace.folder.name, "app", "1", 5, None, (), (), {}, 0))
    verdict = verify.StoreVerification(
        str(TASK), "n", 4, "", compared_keys, 0 if compared_keys else 4, different, 0 if compared_keys else 4,
        bool(compared_keys), (),
    )  # fmt: skip
    workspace.write(WorkspaceProgress(state, ended_ms=NOW + HOUR, verdicts={f"{TASK}/n": verdict}))
    assert suspects(settings, plan) == ({OTHER} if clears else {TASK, OTHER})
    kept_drill(settings, plan, NOW + 2 * HOUR, 1)
    assert suspects(settings, plan) == {TASK, OTHER}


def test_should_trust_drills_until_a_repair_has_compared_the_store_with_its_changelog(settings, plan):
    kept_drill(settings, plan, NOW, 3)
    for at_ms, suspected in ((NOW - HOUR, {TASK, OTHER}), (NOW + HOUR, {OTHER})):
        note_repaired(settings.state_dir, "app", [(TASK, "n")], at_ms)
        assert suspects(settings, plan) == suspected
    kept_drill(settings, plan, NOW + 2 * HOUR, 1)
    assert suspects(settings, plan) == {TASK, OTHER}


@pytest.mark.parametrize(("state", "clears"), [(RewindState.DONE, True), (RewindState.COMMITTING, False)])
def test_should_trust_drills_until_a_rewind_has_replaced_the_store(settings, plan, state, clears):
    kept_drill(settings, plan, NOW, 3)
    folder = settings.state_dir / ".rewinds" / "app" / new_id()
    folder.mkdir(parents=True)
    (folder / "rewind.json").write_text(json.dumps(asdict(RewindProgress(state, NOW, NOW + HOUR, {str(TASK): 7}, ()))))
    assert suspects(settings, plan) == ({OTHER} if clears else {TASK, OTHER})


def test_should_take_the_drill_that_was_written_last_for_the_last_one_whatever_its_clock_said(settings):
    facts = FactsDatabase(settings)
    for at_ms in (NOW + 48 * HOUR, NOW):
        write_drill(facts, drill(at_ms, compared(at_ms=at_ms)))
    passed = last_passed(facts, "app")
    assert passed is not None
    assert passed.drill_id == f"d{NOW}"
    facts.close()


@pytest.mark.parametrize(
    ("tasks", "generation", "newer"),
    [
        ((TASK, OTHER), 0, []),
        ((TASK, OTHER), 1, ["0_1/n", "0_0/n"]),
        ((TASK, OTHER, TaskId(0, 2)), 0, ["0_2/n"]),
    ],
)
def test_should_not_count_a_passed_drill_for_stores_that_it_did_not_compare(settings, plan, tasks, generation, newer):
    kept_drill(settings, plan, NOW, 0)
    kept_drill(settings, plan, NOW + HOUR, 3)
    facts = FactsDatabase(settings)
    passed = last_passed(facts, "app")
    facts.close()
    assert passed is not None
    assert passed.drill_id == f"d{NOW}"
    assert undrilled(passed.report, with_generations(plan, {"n": generation}), tasks) == newer
