"""Scenarios of `make oncall`: all tasks of all DAGs are cleared, after success and after failure; nothing is done twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.system.oncall.deployed import Clicks, begun
from tests.system.oncall.operating import COMPACTION
from tests.system.oncall.probe import DEPLOYED, arm
from tests.system.oncall.scene import RESET, RESTORE, Scene, differing, expect
from tests.system.oncall.versions import deploy

from tidemark.names import commits_topic
from tidemark.operations.topic_changes import TopicChange, apply_changes, plan_changes

RESCALE, UPGRADE, REPAIR = "rescale", "upgrade", "repair"
CHECKS = (
    "retention_check", "durability_check", "lag_check", COMPACTION, "restore_drill", "drill_age_check", "exactly_once_audit",
)  # fmt: skip
OTHERS = (RESCALE, UPGRADE, REPAIR, "savepoint", *CHECKS)
_OVER_S = 900
_SETTING = "min.compaction.lag.ms"


def cleared_restores_do_nothing_twice(scene: Scene) -> None:
    """One that has restored, one that was rolled back, one that was rejected."""
    found, run_id = _answered(scene, RESTORE, source="changelog")
    expect(found["outcome"] == "restored", f"{found['outcome']}: {found['failures']}")
    _clear_each(scene, RESTORE, run_id)
    arm(scene.arm_file, {"swap-one": "refuse"})
    found, run_id = _answered(scene, RESTORE, source="changelog")
    expect(found["outcome"] == "failed and rolled back", f"{found['outcome']}: {found['failures']}")
    _clear_each(scene, RESTORE, run_id)
    scene.require_exact()


def cleared_changes_do_nothing_twice(scene: Scene) -> None:
    """A reset, a repair, a rescale and an upgrade, each of which failed behind its commit; then each that has succeeded."""
    clicks = _clicks(scene)
    begun(clicks)
    folder = Path(os.environ[DEPLOYED])
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        (REPAIR, {"stores": ["minutes"], "source": "local"}),
        (RESET, {"to": "earliest", "state": "empty"}),
        (RESCALE, {"tasks": 3}),
        (UPGRADE, {"rename": ["users=people"], "add": ["people.newest"]}),
    )
    for dag_id, asked in changes:
        if dag_id == UPGRADE:
            deploy(folder, "2")
        arm(scene.arm_file, {"oncall-relaunch": "refuse"})
        found, run_id = _answered(clicks, dag_id, **asked)
        expect(
            (found["state"], found["outcome"])
            == ("failed", "changed, but the instances do not run: a person is needed now"),
            f"{dag_id}: {found['state']}, {found['outcome']}: {found['failures']}",
        )
        clicks.console.print(f"    {dag_id}: failed behind its commit")
        if isinstance(clicks.bench, Clicks):
            clicks.bench.renew()
        again = _clear_each(clicks, dag_id, run_id)
        expect(again["state"] == "success", f"{dag_id}, cleared: {again}")


def cleared_checks_change_nothing(scene: Scene) -> None:
    """Each check and the savepoint, after a success, and where the run was marked failed."""
    for dag_id in (*CHECKS, "savepoint"):
        run_id = scene.users["oncall"].trigger(dag_id, {"topologies": [scene.bench.topology]})
        found = scene.run_ended(run_id, _OVER_S, dag_id)
        expect(found["state"] in ("success", "failed"), f"{dag_id}: {found}")
        _clear_each(scene, dag_id, run_id, one_by_one=False)
        scene.airflow.api.stop_run(dag_id, run_id)
        _clear_each(scene, dag_id, run_id, one_by_one=False)
    scene.require_exact()


def cleared_topic_settings_are_not_set_twice(scene: Scene) -> None:
    """An approval is used once: what somebody sets after it stays, whatever is cleared. One that was refused sets nothing."""
    topic, plan = commits_topic(scene.bench.application_id), scene.bench.plan

    def differ() -> TopicChange:
        apply_changes([TopicChange(topic, _SETTING, "", "1")], scene.settings, scene.bench.admin)
        (change,) = plan_changes(plan, scene.settings, scene.bench.admin)
        return change

    asked = {"topologies": [scene.bench.topology], "apply": True}
    try:
        differ()
        run_id = scene.users["oncall"].trigger(COMPACTION, asked)
        scene.asked(run_id, dag_id=COMPACTION)
        scene.answer(run_id, "admin", "Approve", dag_id=COMPACTION)
        found = scene.run_ended(run_id, dag_id=COMPACTION)
        expect(found["tasks"]["set_topics"] == "success", str(found["tasks"]))
        expect(plan_changes(plan, scene.settings, scene.bench.admin) == [], "it was not set")
        differ()
        _clear_each(scene, COMPACTION, run_id)

        run_id = scene.users["oncall"].trigger(COMPACTION, asked)
        scene.asked(run_id, dag_id=COMPACTION)
        apply_changes([TopicChange(topic, _SETTING, "1", "2")], scene.settings, scene.bench.admin)
        scene.answer(run_id, "admin", "Approve", dag_id=COMPACTION)
        found = scene.run_ended(run_id, dag_id=COMPACTION)
        expect(found["tasks"]["set_topics"] == "failed", f"a list that nobody saw was set: {found['tasks']}")
        _clear_each(scene, COMPACTION, run_id)
    finally:
        apply_changes([differ()], scene.settings, scene.bench.admin)


def _answered(scene: Scene, dag_id: str, **asked: Any) -> tuple[dict[str, Any], str]:
    """The report of a run that was approved, and its id."""
    run_id = scene.trigger(dag_id=dag_id, dry_run=False, **asked)
    scene.asked(run_id, 240, dag_id=dag_id)
    scene.answer(run_id, "admin", "Approve", dag_id=dag_id)
    return scene.ended(run_id, _OVER_S, dag_id=dag_id), run_id


def _clear_each(scene: Scene, dag_id: str, run_id: str, *, one_by_one: bool = True) -> dict[str, Any]:
    """Clear all tasks of a run, then each alone; how the run was when all had run again. Nothing may have changed."""
    scene.await_running()
    scene.bench.wait_drained()
    before = scene.world()
    scene.clear(run_id, "oncall", dag_id)
    first = scene.run_ended(run_id, _OVER_S, dag_id)
    changed = differing(before, scene.world())
    expect(not changed, f"{dag_id}, all tasks cleared: {changed}")
    for task in sorted(first["tasks"]) if one_by_one else ():
        scene.clear(run_id, "oncall", dag_id, [task])
        scene.run_ended(run_id, _OVER_S, dag_id)
        changed = differing(before, scene.world())
        expect(not changed, f"{dag_id}, {task} cleared: {changed}")
    scene.console.print(f"    {dag_id}: cleared, {first['state']}")
    return first


def _clicks(scene: Scene) -> Scene:
    if scene.clicks is None:
        raise ValueError("this scene has no other stream")
    return scene.clicks
