"""A scenario of `make oncall`: a change to the application, planned, rejected, then done though each step is killed."""

from __future__ import annotations

import json

from tests.oncall.probe import arm
from tests.oncall.scene import RESET, Scene, expect

_STEPS = ("preflight", "plan", "fence", "change", "relaunch", "drain", "release", "report")
_TO_THE_BEGINNING = {"to": "earliest", "state": "empty"}


def a_change_is_done_only_once_approved(scene: Scene) -> None:
    """Everything is read again from the beginning. It comes last: outputs come twice then, as the plan says."""
    before = scene.standing()
    run_id = scene.trigger(dag_id=RESET, dry_run=False, **_TO_THE_BEGINNING)
    shown = scene.asked(run_id, dag_id=RESET)["body"]
    for told in ("cannot be rolled back", "their outputs emitted again", "- **Reason given**: the test asks for it"):
        expect(told in shown, f"the approver is not told: {told}: {shown}")
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
