"""The tasks of the DAGs that change an application, and their order, on a real broker."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.integration.instance.test_topic_identity import delete
from tests.integration.operations.change.test_upgrade import description
from tests.support.airflow.approving import answer, approve, ask, run_of
from tests.support.changes import ChangingApp
from tests.support.counting import come_to

from tidemark.errors import StartRefused
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold
from tidemark_airflow import cases, changes

pytestmark = pytest.mark.usefixtures("known_at_once")

VERSION_ONE = "version_one({name!r})"
VERSION_TWO = "version({name!r}, '2', 'total', n='count(*)', most='max(v)')"
VERSION_NINE = VERSION_TWO.replace("'2'", "'9'")

RESET = {"to": "earliest", "state": "empty", "offsets": [], "time": ""}
CHANGES = {
    "upgrade": {"rename": ["n=total"], "drop": [], "add": ["total.most=0"]},
    "rescale": {"tasks": 3},
    "reset": RESET,
    "repair": {"stores": [], "source": "best"},
}

_MINUTES = itertools.count()


def asked(kind, app, **params):
    """The context of the tasks of one run. Each run is asked for a minute later than the last."""
    given = {
        "topology": app.module,
        "dry_run": False,
        "reason": "a | <b>",
        "relaunch_timeout_s": 10,
        "drain_timeout_s": 10,
    }
    return {"params": {**given, **(params or CHANGES[kind])}, "dag_run": run_of(kind, next(_MINUTES))}


def planned(context):
    changes.preflight(context)
    return changes.plan(context)


def run(app):
    """Count what was fed. Its instance is this very process, which stays alive, so what it says of itself is removed."""
    app.run()
    shutil.rmtree(app.settings.var_dir / "instances")


def counted(settings, admin, name):
    """1000 records of 200 keys counted by version 1. Nothing runs."""
    made = ChangingApp(settings, admin, name)
    made.feed(1000)
    run(made)
    return made


def committed(app):
    """What every task has committed last, and what is recorded of the state."""
    return app.last_records(), description(app)


@pytest.fixture
def app(settings, admin, unique):
    return counted(settings, admin, unique("changed"))


def shared(name, broker, admin, folder):
    settings = Settings.load(bootstrap_servers=broker.bootstrap, var_dir=folder / "var", state_dir=folder / "state")
    return counted(settings, admin, f"{name}-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def idle(broker, admin, tmp_path_factory):
    """The application of tests that change nothing, as the last of them must leave it."""
    made = shared("idle", broker, admin, tmp_path_factory.mktemp("idle"))
    before = committed(made)
    yield made
    assert committed(made) == before


@pytest.fixture(scope="module")
def damaged(broker, admin, tmp_path_factory):
    """Another, whose changelog was deleted."""
    made = shared("damaged", broker, admin, tmp_path_factory.mktemp("damaged"))
    delete(made, f"{made.name}-n-changelog")
    before = committed(made)
    yield made
    assert committed(made) == before


@pytest.fixture
def deploy(tmp_path, monkeypatch):
    """`deploy(app, made)`: what the application's module makes from now on."""

    def write(app, made):
        app.module = app.for_commands(tmp_path, monkeypatch)
        write_module(app, tmp_path, made)

    return write


def write_module(app, folder, made):
    (folder / f"{app.module}.py").write_text(
        f"from tests.support.changes import version, version_one\ndef topology():\n    return {made.format(name=app.name)}\n"
    )


def proposed(kind, app, deploy):
    """A run of this kind, planned, that would change something."""
    deploy(app, VERSION_TWO if kind == "upgrade" else VERSION_ONE)
    context = asked(kind, app)
    planned(context)
    return context


@pytest.fixture(params=CHANGES)
def proposal(request, deploy):
    """An application that must stay as it is, and a run of each kind, planned, that would change it."""
    app = request.getfixturevalue("damaged" if request.param == "repair" else "idle")
    context = proposed(request.param, app, deploy)
    yield app, context
    cases.release(context)


@pytest.mark.broker
def test_should_plan_hold_change_relaunch_and_report(app, deploy):
    deploy(app, VERSION_TWO)
    context = asked("upgrade", app)
    summary = planned(context)
    assert "`n → total` is copied: renamed from n; most is 0" in summary
    assert "- **Reason given**: a \\| &lt;b>" in summary
    assert "- **Rename**: `n=total`" in summary
    assert "- **Standstill**: about 30 s" in summary
    assert (
        "- **Rates**: 250,000 changelog offsets/s and 200.0 MB/s of a savepoint (assumed, no drill has measured it)."
        in summary
    )
    assert description(app).version == "1"
    assert ask(context)["body"] == summary
    answer(context)
    cases.fence(context)
    hold = read_hold(app.settings.var_dir, app.name)
    assert (hold.by, hold.reason) == (cases.case_of(context).case.case_id, "a | <b>")
    other = asked("upgrade", app)
    with pytest.raises(AirflowFailException, match="is held by"):
        changes.preflight(other)
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change(context)
    assert description(app).version == "2"
    cases.release(other)
    assert read_hold(app.settings.var_dir, app.name) is not None
    cases.relaunch(context)
    assert read_hold(app.settings.var_dir, app.name) is None
    cases.drain(context)
    page = Path(cases.report(context)).read_text()
    assert "<strong>changed</strong>" in page
    assert "<td>answered by</td><td>grace</td>" in page


@pytest.mark.broker
def test_should_release_the_hold_and_fail_when_the_change_fails(idle, deploy, monkeypatch):
    context = proposed("upgrade", idle, deploy)
    approve(context)
    cases.fence(context)
    monkeypatch.setattr("tidemark.operations.change.upgrade.Upgrade.run", refused)
    with pytest.raises(AirflowFailException, match="no such luck"):
        changes.change(context)
    cases.release(context)
    assert read_hold(idle.settings.var_dir, idle.name) is None
    with pytest.raises(AirflowFailException, match=r"failed: .*: change: no such luck; the report is .*report.html"):
        cases.report(context)
    # The stream runs again: what failed is planned again.
    with pytest.raises(AirflowFailException, match="its work is given up: trigger a new run"):
        cases.fence(context)


def refused(*_):
    raise StartRefused("no such luck")


@pytest.mark.broker
def test_should_fail_without_retries_and_give_the_reasons_when_the_change_is_refused(idle, deploy):
    deploy(idle, VERSION_TWO)
    with pytest.raises(AirflowFailException, match="--rename n=NEW"):
        planned(asked("upgrade", idle, rename=[], drop=[], add=[]))
    with pytest.raises(AirflowFailException, match="tidemark upgrade plan"):
        planned(asked("rescale", idle, tasks=3))


@pytest.mark.broker
def test_should_plan_rescales_and_resets(app, deploy):
    deploy(app, VERSION_ONE)
    assert "3 tasks instead of [2]" in planned(asked("rescale", app, tasks=3))
    reset = asked("reset", app)
    assert "offsets to earliest, state: empty" in planned(reset)
    approve(reset)
    changes.change(reset)
    assert "records are processed again" not in planned(asked("reset", app))
    with pytest.raises(AirflowFailException, match="time"):
        planned(asked("reset", app, **{**RESET, "to": "time", "time": "yesterday"}))


@pytest.mark.broker
def test_should_write_a_lost_changelog_again(app, deploy):
    deploy(app, VERSION_ONE)
    delete(app, f"{app.name}-n-changelog")
    context = asked("repair", app)
    summary = planned(context)
    assert (
        f"`0_0/n`, compared with {app.store_folder(0)}: `{app.name}-n-changelog` written to a new changelog" in summary
    )
    assert "was deleted" in summary
    approve(context)
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change(context)
    shutil.rmtree(app.state)
    app.feed(100)
    app.run()
    assert app.counts() == app.expected


@pytest.mark.broker
def test_should_reset_to_the_planned_offsets_when_records_have_arrived_since_the_plan(app, deploy):
    deploy(app, VERSION_ONE)
    app.feed(200)
    context = asked("reset", app, **{**RESET, "to": "time", "time": "now", "state": "keep"})
    context["dag_run"].run_after = datetime.now(UTC)
    planned(context)
    offsets = cases.case_of(context).folder.read("plan.json")["offsets"]
    app.feed(300)
    approve(context)
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change(context)
    assert come_to(app, [int(offset.rpartition("=")[2]) for offset in sorted(offsets)])
    again = asked("reset", app, **{**RESET, "state": "keep"})
    planned(again)
    assert cases.case_of(again).folder.read("plan.json")["offsets"] == []


@pytest.mark.broker
@pytest.mark.parametrize("unread", [0, 300])
def test_should_reset_to_the_end_when_the_stream_is_past_that_of_the_plan(app, deploy, unread):
    deploy(app, VERSION_ONE)
    app.feed(200)
    context = asked("reset", app, **{**RESET, "to": "latest", "state": "keep"})
    assert "`latest` is the end when the change is made" in planned(context)
    approve(context)
    app.feed(300)
    run(app)
    before = committed(app)
    if unread:
        app.feed(unread)
    changes.change(context)
    assert cases.is_done(context)
    assert (committed(app) == before) is (unread == 0)


@pytest.mark.broker
def test_should_stop_and_change_nothing_when_nobody_has_approved(proposal):
    app, context = proposal
    before = committed(app)

    def is_refused(summary):
        for step in (cases.fence, changes.change):
            with pytest.raises(AirflowFailException, match=summary):
                step(context)
        assert read_hold(app.settings.var_dir, app.name) is None
        assert committed(app) == before

    # Marked successful through the API, before and after it was asked.
    is_refused("marking the task as successful is not an answer")
    ask(context)
    is_refused("marking the task as successful is not an answer")
    answer(context, "Reject")
    is_refused("grace answered Reject")
    ask(context)
    answer(context, "Reject", user=None)
    is_refused("no user answered for the plan of case .* in time")


@pytest.mark.broker
def test_should_refuse_an_answer_when_its_user_may_not_approve(proposal, monkeypatch):
    app, context = proposal
    monkeypatch.setenv("TIDEMARK_ONCALL_APPROVERS", '["ada", "7"]')
    assert [user["id"] for user in ask(context)["assigned_users"]] == ["ada", "7"]
    # With [core] simple_auth_manager_all_admins, Airflow lets anybody answer.
    with pytest.raises(AirflowFailException, match=r"grace .* is not in the setting oncall_approvers"):
        answer(context)
    monkeypatch.setenv("TIDEMARK_APPROVAL_BY_ANOTHER", "true")
    ask(context)
    with pytest.raises(AirflowFailException, match="ada triggered this run and approved it"):
        answer(context, user="ada")
    with pytest.raises(AirflowFailException, match=r"refused before anything was changed: .*ada triggered this run"):
        cases.report(context)
    for step in (cases.fence, changes.change):
        with pytest.raises(AirflowFailException, match="ada triggered this run and approved it"):
            step(context)
    assert read_hold(app.settings.var_dir, app.name) is None
    ask(context)
    answer(context, user="7")
    cases.fence(context)


@pytest.mark.broker
def test_should_refuse_a_topology_that_was_deployed_between_approval_and_change(proposal, deploy):
    app, context = proposal
    approve(context)
    before = committed(app)
    deploy(app, VERSION_NINE)
    for step in (cases.fence, changes.change):
        with pytest.raises(
            AirflowFailException, match=r'topology\.version is "9" now and was "\d" .*Trigger a new run'
        ):
            step(context)
    assert read_hold(app.settings.var_dir, app.name) is None
    assert committed(app) == before


@pytest.mark.broker
@pytest.mark.parametrize("kind", CHANGES)
def test_should_change_nothing_a_second_time_when_a_finished_case_is_repeated(kind, app, deploy):
    if kind == "repair":
        delete(app, f"{app.name}-n-changelog")
    context = proposed(kind, app, deploy)
    summary = cases.case_of(context).folder.read("plan.json")["summary"]
    approve(context)
    cases.fence(context)
    changes.change(context)
    cases.relaunch(context)
    cases.release(context)
    before, notes = committed(app), cases.case_of(context).folder.notes()
    assert ask(context) is None
    for step in (cases.fence, changes.change, cases.release):
        step(context)
    assert committed(app) == before
    assert cases.case_of(context).folder.notes() == notes
    assert changes.plan(context) == summary
    assert read_hold(app.settings.var_dir, app.name) is None


@pytest.mark.broker
def test_should_refuse_a_plan_that_was_edited_or_made_again_for_another_change(proposal):
    _, context = proposal
    approve(context)
    folder = cases.case_of(context).folder
    edited = json.loads((folder.folder / "plan.json").read_text())
    edited["content"]["options"]["tasks"] = 7
    folder.write("plan.json", edited)
    with pytest.raises(AirflowFailException, match=r"grace approved plan .* but the plan of case .* is .* now"):
        cases.fence(context)
    changes.plan(context)  # What nobody edited is what was approved.
    cases.fence(context)


@pytest.mark.broker
def test_should_refuse_a_reset_when_it_would_reprocess_records_that_its_plan_did_not_show(app, deploy):
    deploy(app, VERSION_ONE)
    app.feed(200)
    context = asked("reset", app, **{**RESET, "to": "time", "time": "now", "state": "keep"})
    context["dag_run"].run_after = datetime.now(UTC)
    assert "are never processed" in planned(context)
    approve(context)
    app.feed(300)
    run(app)
    before = committed(app)
    with pytest.raises(AirflowFailException, match=r"plan\.effects\.processes_again is true now and was false"):
        changes.change(context)
    assert committed(app) == before


@pytest.mark.broker
def test_should_not_repeat_a_reset_when_its_answer_was_used_before_it_failed(app, deploy, monkeypatch):
    context = proposed("reset", app, deploy)
    approve(context)
    cases.fence(context)
    # Killed behind the commit, each try; then the stream is let go and reads on.
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.operations.case.approval.PlanApproval.finish", refused)
        with pytest.raises(AirflowFailException, match="no such luck"):
            changes.change(context)
    cases.release(context)
    run(app)
    before = committed(app)
    for step in (cases.fence, changes.change):
        with pytest.raises(AirflowFailException, match="its work is given up: trigger a new run"):
            step(context)
    assert committed(app) == before


@pytest.fixture(scope="module")
def stopped(operations, admin):
    """An application of the operations' settings that no run may change. Nothing runs."""
    made = ChangingApp(operations.settings, admin, f"stopped-{uuid.uuid4().hex[:8]}")
    made.feed(100)
    run(made)
    return made


def deployed(app, operations, kind):
    """The name of a module of its own, the only one of the application: what a run of this kind would change that to."""
    own = app.name.replace("-", "_")
    for former in operations.folder.glob(f"*_{own}.py"):
        former.unlink()
    app.module = f"{kind}_{own}"
    made = "version({name!r}, '2', 'n', n='count(*)', most='max(v)')" if kind == "upgrade" else VERSION_ONE
    write_module(app, operations.folder, made)
    return app.module


@pytest.mark.broker
@pytest.mark.airflow
def test_should_end_after_the_plan_when_it_is_a_dry_run(operations, stopped):
    params = {"topology": deployed(stopped, operations, "rescale"), "tasks": 3, "reason": "to see"}
    ended, log = operations.airflow.run("rescale", params)
    skipped = dict.fromkeys(("approval", "fence", "change", "relaunch", "drain"), "skipped")
    done = dict.fromkeys(("preflight", "plan", "unless_dry_run", "release", "report"), "success")
    assert ended == {"run": "success", "tasks": {**done, **skipped}}
    assert "3 tasks instead of [2]" in log
    assert "dry run, nothing was changed; report: " in log


@pytest.mark.broker
@pytest.mark.airflow
@pytest.mark.parametrize("kind", ["restore_oncall", *CHANGES])
def test_should_stop_and_change_nothing_when_the_approval_is_marked_successful_by_hand(kind, operations, stopped):
    own = {
        "upgrade": {"add": ["n.most=0"]},
        "rescale": {"tasks": 3},
        "repair": {"stores": ["n"]},
    }.get(kind, {})
    before, stores = committed(stopped), stopped.counts()
    asked_for = {"topology": deployed(stopped, operations, kind), "reason": "to see", "dry_run": False, **own}
    ended, log = operations.airflow.run(kind, asked_for, marked="approval")
    changing = ("restore", "verify", "swap") if kind == "restore_oncall" else ("change",)
    done = dict.fromkeys(("preflight", "plan", "unless_dry_run", "approval", "release"), "success")
    skipped = {"roll_back": "skipped"} if kind == "restore_oncall" else {}
    left = dict.fromkeys((*changing, "relaunch", "drain"), "upstream_failed")
    assert ended == {"run": "failed", "tasks": {**done, **left, **skipped, "fence": "failed", "report": "failed"}}
    assert "marking the task as successful is not an answer" in log
    assert "refused before anything was changed" in log
    assert (committed(stopped), stopped.counts()) == (before, stores)
    assert read_hold(stopped.settings.var_dir, stopped.name) is None
