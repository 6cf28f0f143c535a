"""A scenario of `make oncall`: another topology is deployed between the approval of a plan and what it changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.system.oncall.clearing import REPAIR, RESCALE, UPGRADE
from tests.system.oncall.deployed import begun
from tests.system.oncall.probe import DEPLOYED, arm
from tests.system.oncall.scene import RESET, RESTORE, Scene, differing, expect
from tests.system.oncall.versions import deploy

_REFUSALS = ("is not the one that was approved", "keeps is not the state that version")
"""What a step says that compares with the plan, and what one says that compares with the state before that."""


def a_topology_deployed_meanwhile_is_refused(scene: Scene) -> None:
    """While the plan waits for its answer, and between the standstill and the change: nothing is changed."""
    if scene.clicks is None:
        raise ValueError("this scene has no other stream")
    clicks, folder = scene.clicks, Path(os.environ[DEPLOYED])
    begun(clicks)
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        (RESET, {"to": "earliest", "state": "empty"}),
        (RESTORE, {"source": "changelog"}),
        (RESCALE, {"tasks": 3}),
        (REPAIR, {"stores": ["minutes"], "source": "local"}),
        (UPGRADE, {"rename": ["users=people"], "add": ["people.newest"]}),
    )
    for dag_id, asked in cases:
        planned, other = ("2", "1") if dag_id == UPGRADE else ("1", "2")
        before = clicks.world()
        deploy(folder, planned)
        run_id = clicks.trigger(dag_id=dag_id, dry_run=False, **asked)
        clicks.asked(run_id, 240, dag_id=dag_id)
        deploy(folder, other)
        clicks.answer(run_id, "admin", "Approve", dag_id=dag_id)
        found = clicks.ended(run_id, 600, dag_id=dag_id)
        deploy(folder, "1")
        _require_refused(dag_id, found)
        expect(found["outcome"] == "refused before anything was changed", f"{dag_id}: {found['outcome']}")
        changed = differing(before, clicks.world())
        expect(not changed, f"{dag_id}: something changed: {changed}")
        clicks.console.print(f"    {dag_id}: refused")
    _deployed_behind_the_fence(clicks, folder)


def _deployed_behind_the_fence(clicks: Scene, folder: Path) -> None:
    before = clicks.world()
    arm(clicks.arm_file, {"oncall-fence-done": "deploy 2"})
    run_id = clicks.trigger(dag_id=RESET, dry_run=False, to="earliest", state="empty")
    clicks.asked(run_id, 240, dag_id=RESET)
    clicks.answer(run_id, "admin", "Approve", dag_id=RESET)
    found = clicks.run_ended(run_id, 600, dag_id=RESET)
    deploy(folder, "1")
    _require_refused(RESET, {**clicks.ended(run_id, 600, dag_id=RESET), **found})
    clicks.await_running(180)
    clicks.bench.wait_drained()
    after = clicks.world()
    # The instance was stopped and launched again; nothing else happened.
    changed = differing({**before, "process": 0, "starts": 0}, {**after, "process": 0, "starts": 0})
    expect(not changed, f"deployed behind the fence: something changed: {changed}")


def _require_refused(dag_id: str, found: dict[str, Any]) -> None:
    expect(found["state"] == "failed", f"{dag_id}: the run did not fail: {found['outcome']}")
    expect(
        any(words in failure for words in _REFUSALS for failure in found["failures"]), f"{dag_id}: {found['failures']}"
    )
