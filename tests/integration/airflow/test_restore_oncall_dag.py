"""The wiring of `restore_oncall`: who may approve, what no answer means, and what runs when a step fails."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tests.support.airflow.approving import RESTORE_ASKED, answer, approve, ask, run_of
from tests.support.counting import CountingApp

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown
from tidemark.operations.case.case import RESTORE, CaseFolder, case_id_of
from tidemark.operations.case.plan import PlanKind, Planned
from tidemark.operations.case.plan_hash import plan_content
from tidemark.operations.context import OperationContext
from tidemark.operations.workspace import RestoreState, Workspace, WorkspaceProgress, new_id
from tidemark.settings import Settings
from tidemark.supervision.hold import Hold, read_hold, take_hold
from tidemark_airflow import cases, oncall


@pytest.fixture
def context() -> dict[str, Any]:
    """What a task is given."""
    task = SimpleNamespace(xcom_push=lambda *_: None)
    given = {**RESTORE_ASKED, "relaunch_timeout_s": 7, "drain_timeout_s": 5}
    return {"params": given, "dag_run": run_of(RESTORE), "ti": task}


@pytest.fixture
def stopped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the instances were stopped; instance 0 ran before."""
    found: list[str] = []

    def stop(var_dir: Any, application_id: str, by: str, reason: str, report: Any) -> Hold:
        found.append(reason)
        instances = () if len(found) > 1 else (0,)
        return take_hold(var_dir, application_id, Hold(by, reason, 1, instances))

    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    for module in (cases, oncall):
        monkeypatch.setattr(module, "stop_under_hold", stop)
    return found


def folder_of(context: dict[str, Any]) -> CaseFolder:
    return CaseFolder.of(Settings.load().var_dir, "shopping", case_id_of(context["dag_run"].run_after), wall_clock_ms)


def planned(context: dict[str, Any]) -> None:
    """As if `plan` had run: `shopping` has no state that could be weighed."""
    opened = cases.case_of(context)
    opened.folder.open(opened.case)
    deployed = OperationContext.of(opened.topology, opened.settings, (), wall_clock_ms).plan
    content = plan_content(opened.case, deployed, None, {})
    opened.folder.write("plan.json", Planned(PlanKind.RESTORE, "the plan", 0.0, None, {}, content).to_dict())


@pytest.mark.broker
def test_should_not_stop_the_instances_to_roll_back_a_restore_that_never_began(
    context: dict[str, Any], stopped: list[str]
) -> None:
    with pytest.raises(AirflowSkipException):
        oncall.roll_back(context)
    assert stopped == []
    planned(context)
    approve(context)
    cases.fence(context)
    with pytest.raises(AirflowSkipException):
        oncall.roll_back(context)
    # Marked as done or not: what nobody approved is not rolled back.
    folder_of(context).note("restore", "begun")
    with pytest.raises(AirflowSkipException):
        oncall.roll_back(context)
    assert stopped == ["the disk died"]


@pytest.mark.broker
def test_should_stop_no_instance_when_nobody_has_approved(context: dict[str, Any], stopped: list[str]) -> None:
    planned(context)
    with pytest.raises(AirflowFailException, match="no user has answered for the plan of case"):
        cases.fence(context)
    ask(context)
    answer(context, "Reject")
    with pytest.raises(AirflowFailException, match="grace answered Reject"):
        cases.fence(context)
    assert stopped == []
    assert read_hold(Settings.load().var_dir, "shopping") is None


@pytest.mark.broker
def test_should_stop_no_instance_when_another_topology_was_deployed_since_the_plan(
    context: dict[str, Any], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(context)
    approve(context)
    topology = cases.load("shopping")
    deployed = replace(topology.plan(), version="77")
    other = SimpleNamespace(application_id=topology.application_id, plan=lambda: deployed)
    monkeypatch.setattr(cases, "load", lambda _name: other)
    with pytest.raises(AirflowFailException, match=r'topology\.version is "77" now and was "1"'):
        cases.fence(context)
    assert stopped == []


@pytest.mark.broker
def test_should_stop_no_instance_again_when_the_case_is_done(context: dict[str, Any], stopped: list[str]) -> None:
    planned(context)
    approve(context)
    cases.fence(context)
    approval = cases.approval_of(context)
    approval.use()
    approval.finish()
    cases.release(context)
    before = folder_of(context).notes()
    cases.fence(context)
    assert ask(context) is None
    assert stopped == ["the disk died"]
    assert folder_of(context).notes() == before
    assert read_hold(Settings.load().var_dir, "shopping") is None


@pytest.mark.broker
def test_should_wait_for_the_instances_that_ran_before_the_first_fence_when_it_is_cleared(
    context: dict[str, Any], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    planned(context)
    approve(context)
    monkeypatch.setattr(cases, "await_running", lambda *given: wanted.append(given[2:]))
    cases.fence(context)
    cases.release(context)
    cases.fence(context)  # Cleared: nothing runs any more.
    cases.relaunch(context)
    assert wanted == [((0,), 7.0)]
    assert read_hold(Settings.load().var_dir, "shopping") is None


@pytest.mark.broker
def test_should_report_that_the_instances_do_not_run_without_waiting_for_them_again_after_a_rollback(
    context: dict[str, Any], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise OutcomeUnknown("shopping-0 did not come back within 7 s")

    monkeypatch.setattr(cases, "await_running", never)
    planned(context)
    approve(context)
    cases.fence(context)
    folder = folder_of(context)
    cases.approval_of(context).use()
    folder.note("restore", "begun")
    with pytest.raises(AirflowFailException, match="did not come back"):
        cases.relaunch(context)
    oncall.roll_back(context)
    assert stopped == ["the disk died", "rolling back: the disk died"]
    cases.release(context)
    failed = [note.message for note in folder.notes() if (note.step, note.what) == ("release", "failed")]
    with pytest.raises(AirflowFailException, match="its work is given up: trigger a new run"):
        cases.fence(context)
    assert failed == ["shopping-0 did not come back within 7 s; when the cause is removed, unpause stream__shopping"]


def left_in_its_swap(restore_id: str) -> Workspace:
    """As if a restore had been killed between its renames."""
    left = Workspace(Settings.load().state_dir, "shopping", restore_id)
    left.folder.mkdir(parents=True)
    (left.folder / "plan.json").write_text("{}")
    left.write(WorkspaceProgress(RestoreState.SWAPPING))
    return left


@pytest.mark.broker
def test_should_leave_the_hold_of_a_restore_that_was_killed_in_its_swap_since_the_plan(
    context: dict[str, Any], stopped: list[str]
) -> None:
    planned(context)
    approve(context)
    left = left_in_its_swap(new_id())
    var_dir = Settings.load().var_dir
    killed = take_hold(var_dir, "shopping", Hold("c1", "a restore", 1))
    # Its holder is over, so that the hold is stale and could be taken over.
    over = CaseFolder.of(var_dir, "shopping", "c1", wall_clock_ms)
    over.folder.mkdir(parents=True)
    over.write("report.json", {})
    with pytest.raises(
        AirflowFailException, match=f"restore {left.folder.name} of shopping is swapping: finish it with"
    ):
        cases.fence(context)
    with pytest.raises(AirflowSkipException):
        oncall.roll_back(context)
    cases.release(context)
    assert stopped == []
    assert read_hold(var_dir, "shopping") == killed
    left.finish(left.progress(), RestoreState.DONE)
    cases.fence(context)
    assert stopped == ["the disk died"]


@pytest.mark.broker
@pytest.mark.parametrize("is_own", [False, True])
def test_should_keep_the_hold_while_a_restore_is_half_swapped(
    context: dict[str, Any], stopped: list[str], *, is_own: bool
) -> None:
    """Another one that was killed after `fence`, or that of the case, whose roll-back failed."""
    planned(context)
    approve(context)
    cases.fence(context)
    folder, var_dir = folder_of(context), Settings.load().var_dir
    left = left_in_its_swap(folder.case().case_id if is_own else new_id())
    cases.release(context)
    held = read_hold(var_dir, "shopping")
    assert held is not None
    assert held.by == folder.case().case_id
    failed = [note.message for note in folder.notes() if (note.step, note.what) == ("release", "failed")]
    assert [f"restore {left.folder.name} of shopping is swapping" in message for message in failed] == [True]
    left.finish(left.progress(), RestoreState.ROLLED_BACK)
    cases.release(context)
    assert read_hold(var_dir, "shopping") is None


def swapped_in(context: dict[str, Any]) -> CaseFolder:
    """As if everything up to `swap` had been done."""
    planned(context)
    approve(context)
    cases.fence(context)
    folder, approval = folder_of(context), cases.approval_of(context)
    approval.use()
    for step in ("restore", "verify", "swap"):
        folder.note(step, "begun")
        folder.note(step, "done")
    approval.finish()
    return folder


@pytest.mark.broker
def test_should_keep_a_restored_state_when_the_instances_are_late(
    context: dict[str, Any], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any) -> None:
        raise OutcomeUnknown("shopping-0 did not come back within 7 s")

    folder = swapped_in(context)
    monkeypatch.setattr(cases, "await_running", late)
    with pytest.raises(AirflowFailException, match="did not come back within 7 s; what was approved is done"):
        cases.relaunch(context)
    # Also where somebody runs it by hand.
    with pytest.raises(AirflowSkipException, match="it is kept, nothing is rolled back"):
        oncall.roll_back(context)
    cases.release(context)
    with pytest.raises(AirflowFailException, match="restored, verified and kept, but the instances do not run"):
        cases.report(context)
    assert ("relaunch", "kept forward") in {(note.step, note.what) for note in folder.notes()}
    monkeypatch.setattr(cases, "await_running", lambda *_: None)
    cases.relaunch(context)
    cases.drain(context)
    cases.report(context)
    assert json.loads((folder.folder / "report.json").read_text())["outcome"] == "restored"
    assert stopped == ["the disk died"]


@pytest.mark.broker
def test_should_not_name_the_failure_of_an_earlier_try_as_the_cause_of_an_unproven_restore(
    context: dict[str, Any], stopped: list[str]
) -> None:
    folder = swapped_in(context)
    folder.note("verify", "figures", evidence="not enough evidence")
    folder.note("drain", "failed", "the broker was away")
    folder.note("drain", "done")
    folder.note("relaunch", "done")
    with pytest.raises(AirflowFailException, match="do not show that the new state is right; the report is"):
        cases.report(context)
    assert stopped == ["the disk died"]


@pytest.mark.broker
def test_should_do_nothing_when_every_task_of_a_finished_run_is_cleared(
    context: dict[str, Any], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = swapped_in(context)
    monkeypatch.setattr(cases, "await_running", lambda *_: None)
    cases.relaunch(context)
    folder.note("drain", "done")
    cases.report(context)
    before, reported = folder.notes(), json.loads((folder.folder / "report.json").read_text())

    def never(*_: Any) -> None:
        raise AssertionError("it is done again")

    for name in ("await_running", "await_drained", "stop_under_hold"):
        monkeypatch.setattr(cases, name, never)
    for again in (
        oncall.preflight, oncall.plan, cases.fence, oncall.restore, oncall.verify, oncall.swap, cases.relaunch, cases.drain,
        cases.release,
    ):  # fmt: skip
        again(context)
    with pytest.raises(AirflowSkipException):
        oncall.roll_back(context)
    cases.report(context)
    assert (folder.notes(), json.loads((folder.folder / "report.json").read_text())) == (before, reported)
    assert stopped == ["the disk died"]


@pytest.mark.broker
def test_should_stop_no_instance_when_a_run_that_was_rolled_back_is_cleared(
    context: dict[str, Any], stopped: list[str]
) -> None:
    planned(context)
    approve(context)
    cases.fence(context)
    cases.approval_of(context).use()
    folder_of(context).note("restore", "begun")
    oncall.roll_back(context)
    assert stopped == ["the disk died", "rolling back: the disk died"]
    with pytest.raises(AirflowFailException, match="its work is given up: trigger a new run"):
        cases.fence(context)
    with pytest.raises(AirflowSkipException, match="has already been brought back"):
        oncall.roll_back(context)
    assert stopped == ["the disk died", "rolling back: the disk died"]


@pytest.mark.broker
@pytest.mark.airflow
def test_should_stop_no_instance_when_a_dry_run_is_refused(operations: Any, admin: Any, unique: Any) -> None:
    app = CountingApp(operations.settings, admin, unique("refused"))
    app.feed(10)
    asked = {"topology": operations.topology(app.name), "reason": "to see", "target": "yesterday"}
    ended, log = operations.airflow.run("restore_oncall", asked)
    begun = ("plan", "unless_dry_run", "approval", "fence", "restore", "verify", "swap", "relaunch", "drain")
    expected = {"preflight": "failed", "roll_back": "skipped", "release": "success", "report": "failed"}
    assert ended["tasks"] == expected | dict.fromkeys(begun, "upstream_failed")
    assert "refused before anything was changed" in log


@pytest.mark.broker
@pytest.mark.airflow
def test_should_allow_a_failed_run_with_a_deadline_to_be_cleared(operations: Any) -> None:
    cleared = operations.airflow.clear_failed_run("restore_oncall", {"topology": "clicks", "reason": "to see"})
    allowed_s = operations.settings.oncall_response_timeout_ms // 1000 + operations.settings.rto_s
    assert cleared["run"] == "queued"
    ((least_s, most_s),) = cleared["due_s"]
    assert least_s <= allowed_s <= most_s
