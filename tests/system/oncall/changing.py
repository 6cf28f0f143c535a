"""Scenarios of `make oncall`: a change that is planned, rejected, then made while each step is killed; a false approval."""

from __future__ import annotations

import json
from typing import Any

from tests.support.alert_notes import noted
from tests.system.oncall.probe import arm
from tests.system.oncall.scene import RESET, RESTORE, Scene, expect, refused

from tidemark.alerts import AlertKind

_STEPS = ("preflight", "plan", "fence", "change", "relaunch", "drain", "release", "report")
_TO_THE_BEGINNING = {"to": "earliest", "state": "empty"}


def a_change_is_done_only_once_approved(scene: Scene) -> None:
    """Everything is read again from the beginning. It comes last: outputs come twice then, as the plan says."""
    before = scene.standing()
    run_id = scene.trigger(dag_id=RESET, dry_run=False, **_TO_THE_BEGINNING)
    shown = scene.asked(run_id, dag_id=RESET)["body"]
    for summary in ("cannot be rolled back", "their outputs emitted again", "- **Reason given**: the test asks for it"):
        expect(summary in shown, f"the approver is not told: {summary}: {shown}")
    scene.answer(run_id, "admin", "Reject", dag_id=RESET)
    found = scene.ended(run_id, dag_id=RESET)
    expect((found["state"], found["outcome"]) == ("success", "rejected, nothing was changed"), str(found["outcome"]))
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")

    arm(scene.arm_file, dict.fromkeys((f"oncall-{step}" for step in _STEPS), "kill"))
    with scene.never_two():
        run_id = scene.trigger(dag_id=RESET, dry_run=False, **_TO_THE_BEGINNING)
        scene.asked(run_id, 240, dag_id=RESET)
        scene.answer(run_id, "admin", "Approve", dag_id=RESET)
        found = scene.ended(run_id, 900, dag_id=RESET)
    expect((found["state"], found["outcome"]) == ("success", "changed"), f"{found['outcome']}: {found['failures']}")
    expect(json.loads(scene.arm_file.read_text()) == {}, f"not passed: {scene.arm_file.read_text()}")
    begun = [note["step"] for note in found["time_line"] if note["what"] == "begun"]
    expect(all(begun.count(step) >= 2 for step in _STEPS[:6]), f"not every step was tried again: {begun}")
    expect((found["asked_by"], found["answered_by"]) == ("oncall", "admin"), "who asked and approved is missing")
    expect(found["rto_s"] and found["standstill_s"], "the times are missing")
    expect(scene.standing()["hold"] is None, "the application is still held")
    scene.bench.wait_drained()
    expect(len(scene.drivers()) == 1, "there is not one instance")
    _changes_nothing_when_it_is_cleared(scene, run_id, found)


def _changes_nothing_when_it_is_cleared(scene: Scene, run_id: str, found: dict[str, Any]) -> None:
    before, committed = scene.standing(), scene.bench.committed()
    scene.clear(run_id, "oncall", RESET)
    again = scene.ended(run_id, 600, dag_id=RESET)
    expect((again["state"], again["outcome"]) == ("success", "changed"), f"{again['outcome']}: {again['failures']}")
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")
    expect(scene.bench.committed() == committed, "offsets were moved once more")
    for step in ("fence", "change"):
        times = [len([n for n in one["time_line"] if n["step"] == step]) for one in (found, again)]
        expect(times[0] == times[1], f"{step} did something again: {again['time_line']}")


def a_marked_approval_is_no_answer(scene: Scene) -> None:
    """A user who may not approve marks the task successful: nothing is stopped, nothing is changed."""
    for dag_id, asked in ((RESET, _TO_THE_BEGINNING), (RESTORE, {"source": "changelog"})):
        before, known = scene.standing(), len(noted(scene.notes))
        run_id = scene.trigger(dag_id=dag_id, dry_run=False, **asked)
        scene.asked(run_id, dag_id=dag_id)
        summary = scene.alerts(AlertKind.PLAN_WAITS, known)
        expect(len(summary) == 1 and run_id in summary[0], f"nobody is told that a plan waits: {summary}")
        with refused("a user who is none of the approvers approved it"):
            scene.answer(run_id, "oncall", "Approve", dag_id=dag_id)
        scene.mark(run_id, "oncall", "approval", dag_id)
        found = scene.ended(run_id, dag_id=dag_id)
        expect(found["state"] == "failed", "the run did not fail")
        expect(found["outcome"] == "refused before anything was changed", found["outcome"])
        expect(any("no user has answered" in failure for failure in found["failures"]), str(found["failures"]))
        expect(found["tasks"]["fence"] == "failed", str(found["tasks"]))
        expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")
