"""Scenarios of `make oncall`: the DAG `restore_oncall`, refused, approved, killed at each step, rolled back."""

from __future__ import annotations

import json
from typing import Any

from tests.support.alert_notes import noted
from tests.system.oncall.probe import arm
from tests.system.oncall.scene import RESPONSE_S, RESTORE, Scene, expect, refused

from tidemark.alerts import AlertKind
from tidemark.clock import wall_clock_ms
from tidemark.operations.case.case import CaseFolder
from tidemark.operations.workspace import RestoreState, workspaces
from tidemark.processes import wait_until

_STEPS = ("preflight", "plan", "fence", "restore", "verify", "swap", "relaunch", "drain", "release", "report")


def viewer_is_refused(scene: Scene) -> None:
    """Neither triggers nor answers."""
    before = scene.standing()
    with refused("a viewer triggered it"):
        scene.trigger("guest", dry_run=True)
    run_id = scene.trigger(dry_run=False)
    scene.asked(run_id)
    with refused("a viewer approved it"):
        scene.answer(run_id, "guest", "Approve")
    with refused("a user who is none of the approvers approved it"):
        scene.answer(run_id, "oncall", "Approve")
    scene.answer(run_id, "admin", "Reject")
    scene.ended(run_id)
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")


def dry_run_changes_nothing(scene: Scene) -> None:
    """It is the default, and ends with the plan."""
    before = scene.standing()
    with scene.bench.feeder.feeding():
        found = scene.ended(scene.trigger())
    expect(found["state"] == "success", "the run failed")
    expect(found["outcome"].startswith("dry run"), found["outcome"])
    expect("| 0_0 | pulse-counts |" in found["plan"]["summary"], "the plan names no store")
    expect(found["tasks"]["approval"] == found["tasks"]["fence"] == "skipped", str(found["tasks"]))
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")


def rejection_changes_nothing(scene: Scene) -> None:
    """And the approver sees the blast radius."""
    before = scene.standing()
    run_id = scene.trigger(dry_run=False)
    shown = scene.asked(run_id)
    for summary in ("Standstill", "pulse-counts", "the test asks for it", f"{scene.bench.tasks} task folders"):
        expect(summary in shown["body"], f"the form does not show {summary}: {shown['body']}")
    scene.answer(run_id, "admin", "Reject")
    found = scene.ended(run_id)
    expect((found["state"], found["answered_by"]) == ("success", "admin"), str(found["answered_by"]))
    expect(found["outcome"].startswith("rejected"), found["outcome"])
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")


def silence_means_no(scene: Scene) -> None:
    """Nobody answers in time."""
    before = scene.standing()
    found = scene.ended(scene.trigger(dry_run=False), RESPONSE_S + 120)
    expect(found["state"] == "success", "the run failed")
    expect(found["outcome"].startswith("nobody answered"), found["outcome"])
    expect(scene.standing() == before, f"something changed: {before} {scene.standing()}")


def approval_restores(scene: Scene) -> None:
    """From the changelogs, while input arrives."""
    before = scene.standing()
    with scene.bench.feeder.feeding():
        run_id = scene.trigger(dry_run=False, source="changelog")
        scene.asked(run_id)
        scene.answer(run_id, "admin", "Approve")
        found = scene.ended(run_id)
    _require_restored(scene, found, before)
    expect(found["rto_s"] and found["standstill_s"] and found["rpo_offsets"] == 0, "RTO and RPO are missing")
    expect((found["asked_by"], found["answered_by"]) == ("oncall", "admin"), "who asked and approved is missing")
    scene.console.print(
        f"    RTO {found['rto_s']:.1f} s, standstill {found['standstill_s']:.1f} s, {found['keys']} keys"
    )
    scene.require_exact()


def every_step_is_killed_once(scene: Scene) -> None:
    """The worker dies at the beginning of each step, and in the middle of building and of swapping: the same end."""
    before, known = scene.standing(), len(noted(scene.notes))
    points = [f"oncall-{step}" for step in _STEPS]
    arm(scene.arm_file, dict.fromkeys([*points, "restore-built", "swap-between"], "kill"))
    with scene.bench.feeder.feeding():
        run_id = scene.trigger(dry_run=False, source="changelog")
        scene.asked(run_id, 240)
        scene.answer(run_id, "admin", "Approve")
        found = scene.ended(run_id, 900)
    expect(json.loads(scene.arm_file.read_text()) == {}, f"not passed: {scene.arm_file.read_text()}")
    begun = [note["step"] for note in found["time_line"] if note["what"] == "begun"]
    expect(all(begun.count(step) >= 2 for step in _STEPS[:8]), f"not every step was tried again: {begun}")
    # It took longer than it may: whoever is on call was told so once by the run, and once by the stream that stood.
    summary = scene.alerts(AlertKind.RTO_MISSED, known)
    for by in (f"{RESTORE}: run {run_id} has not ended by", f"{scene.bench.application_id}-0 has made no progress for"):
        expect(len([message for message in summary if message.startswith(by)]) == 1, f"not told once: {by}: {summary}")
    _require_restored(scene, found, before)
    scene.require_exact()


def failure_rolls_back(scene: Scene) -> None:
    """In the middle of the swap: the old folders are put back, though the worker dies at it, and the instance comes back."""
    before, known = scene.standing(), len(noted(scene.notes))
    arm(scene.arm_file, {"swap-one": "refuse", "oncall-roll_back": "kill"})
    with scene.bench.feeder.feeding():
        run_id = scene.trigger(dry_run=False, source="changelog")
        scene.asked(run_id)
        scene.answer(run_id, "admin", "Approve")
        found = scene.ended(run_id, 600)
    expect(found["state"] == "failed", "the run did not fail")
    expect(found["outcome"] == "failed and rolled back", found["outcome"])
    expect(any("the test refuses" in failure for failure in found["failures"]), str(found["failures"]))
    summary = scene.alerts(AlertKind.OPERATION_FAILED, known)
    expect([m.split(": ")[0] for m in summary] == [f"{RESTORE}.swap", f"{RESTORE}.report"], f"told: {summary}")
    newest = workspaces(scene.settings.state_dir, scene.bench.application_id)[0]
    expect(newest.progress().state is RestoreState.ROLLED_BACK, f"the restore is {newest.progress().state}")
    scene.require_exact()
    after = scene.standing()
    expect(after["stores"] == before["stores"], "other folders are in place than before")
    expect(after["hold"] is None, "the application is still held")


def a_restored_state_is_kept(scene: Scene) -> None:
    """The relaunch fails: nothing is rolled back, and when every task is cleared, nothing is done a second time."""
    before = scene.standing()
    arm(scene.arm_file, {"oncall-relaunch": "refuse"})
    with scene.bench.feeder.feeding():
        run_id = scene.trigger(dry_run=False, source="changelog")
        scene.asked(run_id)
        scene.answer(run_id, "admin", "Approve")
        found = scene.ended(run_id, 600)
    expect(found["outcome"].startswith("restored, verified and kept"), found["outcome"])
    expect(found["tasks"]["roll_back"] == "skipped", str(found["tasks"]))
    newest = workspaces(scene.settings.state_dir, scene.bench.application_id)[0]
    expect(newest.progress().state is RestoreState.DONE, f"the restore is {newest.progress().state}")
    scene.await_running()
    scene.clear(run_id, "oncall", RESTORE, ["relaunch", "drain", "report"])
    found = scene.ended(run_id)
    _require_restored(scene, found, before)
    after = scene.standing()
    scene.clear(run_id, "oncall", RESTORE)
    again = scene.ended(run_id)
    expect((again["state"], again["outcome"]) == ("success", "restored"), f"{again['state']}: {again['failures']}")
    expect(again["time_line"] == found["time_line"], "something was done a second time")
    expect(scene.standing() == after, f"something changed: {after} {scene.standing()}")
    scene.require_exact()


def airflow_is_killed_meanwhile(scene: Scene) -> None:
    """The scheduler with the worker that restores, then every other part: the same end, and never two instances."""
    before = scene.standing()
    with scene.bench.feeder.feeding(), scene.never_two():
        run_id = scene.trigger(dry_run=False, source="changelog")
        scene.asked(run_id)
        scene.answer(run_id, "admin", "Approve")
        folder = max((scene.settings.var_dir / "oncall" / scene.bench.application_id).iterdir())
        case = CaseFolder(folder, wall_clock_ms)
        expect(wait_until(lambda: case.has("restore", "begun"), 120, every_s=0.1), "the restore does not begin")
        for part in ("scheduler", "triggerer", "dag-processor", "api-server"):
            scene.airflow.kill(part)
            scene.airflow.start(part)
        found = scene.ended(run_id, 600)
    _require_restored(scene, found, before)
    expect(len(scene.drivers()) == 1, "there is not one instance")
    scene.require_exact()


def _require_restored(scene: Scene, found: dict[str, Any], before: dict[str, Any]) -> None:
    expect((found["state"], found["outcome"]) == ("success", "restored"), f"{found['state']}: {found['failures']}")
    after = scene.standing()
    expect(after["process"] != before["process"], "the instance was not stopped")
    expect(before["stores"].keys() == after["stores"].keys(), "there are other stores")
    same = [name for name, inode in before["stores"].items() if after["stores"][name] == inode]
    expect(not same, f"not replaced: {same}")
    expect(after["hold"] is None, "the application is still held")
    expect(len(after["restores"]) == len(before["restores"]) + 1, "there is not one restore more")
