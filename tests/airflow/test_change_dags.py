"""What the tasks of `upgrade`, `rescale` and `offsets_reset` do, on a real broker; and the order that they come in."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException
from test_operations_dags import operations as operations  # The fixture.
from tests.change.changing import ChangingApp
from tests.change.test_upgrade import description
from tests.restore.counting import CountingApp, come_to

from tidemark.errors import StartRefused
from tidemark.hold import read_hold
from tidemark_airflow import cases, changes

UPGRADED = {"rename": ["n=total"], "drop": [], "add": ["total.most=0"]}
RESET = {"to": "earliest", "state": "empty", "offsets": [], "time": ""}


def asked(kind, app, when=0, **params):
    """The context of the tasks of one run, asked for `when` minutes after midnight."""
    given = {
        "topology": app.module,
        "dry_run": False,
        "reason": "a | <b>",
        "relaunch_timeout_s": 10,
        "drain_timeout_s": 10,
    }
    run = SimpleNamespace(
        dag_id=kind, run_after=datetime(2026, 11, 21, 0, when, tzinfo=UTC), triggering_user_name="ada"
    )
    ti = SimpleNamespace(xcom_pull=lambda **_: {"chosen_options": ["Approve"], "responded_by_user": {"name": "grace"}})
    return {"params": {**given, **params}, "dag_run": run, "ti": ti}


def planned(context):
    changes.preflight(context)
    return changes.plan(context)


@pytest.fixture
def app(settings, admin, unique, tmp_path, monkeypatch):
    """1000 records of 200 keys counted; the module is another version. Nothing runs."""
    made = ChangingApp(settings, admin, unique("changed"))
    made.feed(1000)
    made.run()
    # Its instance was this very process, which is still alive.
    shutil.rmtree(made.settings.var_dir / "instances")
    made.module = made.for_commands(tmp_path, monkeypatch)
    write(made, tmp_path, "version({name!r}, '2', 'total', n='count(*)', most='max(v)')")
    return made


def write(app, folder, made):
    (folder / f"{app.module}.py").write_text(
        f"from tests.change.changing import version, version_one\ndef topology():\n    return {made.format(name=app.name)}\n"
    )


@pytest.mark.broker
def test_should_plan_hold_change_relaunch_and_report(app):
    context = asked("upgrade", app, **UPGRADED)
    told = planned(context)
    assert "`n → total` is copied: renamed from n; most is 0" in told
    assert "- **Reason given**: a \\| &lt;b>" in told
    assert "- **Rename**: `n=total`" in told
    assert "- **Standstill**: about 30 s" in told
    assert description(app).version == "1"
    cases.fence(context)
    hold = read_hold(app.settings.var_dir, app.name)
    assert (hold.by, hold.reason) == (cases.case_of(context).case.case_id, "a | <b>")
    other = asked("upgrade", app, when=5, **UPGRADED)
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
def test_should_let_go_and_fail_where_the_change_failed(app, monkeypatch):
    context = asked("upgrade", app, **UPGRADED)
    planned(context)
    cases.fence(context)
    monkeypatch.setattr("tidemark.change.upgrade.Upgrade.run", refused)
    with pytest.raises(AirflowFailException, match="no such luck"):
        changes.change(context)
    cases.release(context)
    assert read_hold(app.settings.var_dir, app.name) is None
    with pytest.raises(AirflowFailException, match=r"failed: .*: change: no such luck; the report is .*report.html"):
        cases.report(context)


def refused(*_):
    raise StartRefused("no such luck")


@pytest.mark.broker
def test_should_fail_for_good_with_the_reasons_where_it_is_refused(app):
    with pytest.raises(AirflowFailException, match="--rename n=NEW"):
        planned(asked("upgrade", app, rename=[], drop=[], add=[]))
    with pytest.raises(AirflowFailException, match="tidemark upgrade"):
        planned(asked("rescale", app, when=1, tasks=3))


@pytest.mark.broker
def test_should_plan_rescales_and_resets(app, tmp_path, monkeypatch):
    app.module = app.for_commands(tmp_path, monkeypatch)
    write(app, tmp_path, "version_one({name!r})")
    assert "3 tasks instead of [2]" in planned(asked("rescale", app, tasks=3))
    reset = asked("offsets_reset", app, when=1, **RESET)
    assert "offsets to earliest, state: empty" in planned(reset)
    changes.change(reset)
    assert "records are processed again" not in planned(asked("offsets_reset", app, when=2, **RESET))
    with pytest.raises(AirflowFailException, match="time"):
        planned(asked("offsets_reset", app, when=3, **{**RESET, "to": "time", "time": "yesterday"}))


@pytest.mark.broker
def test_a_reset_should_go_where_its_plan_went_whatever_came_since(app, tmp_path, monkeypatch):
    app.module = app.for_commands(tmp_path, monkeypatch)
    write(app, tmp_path, "version_one({name!r})")
    app.feed(200)
    context = asked("offsets_reset", app, **{**RESET, "to": "latest", "state": "keep"})
    planned(context)
    offsets = cases.case_of(context).folder.read("plan.json")["offsets"]
    app.feed(300)
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change(context)
    assert come_to(app, [int(offset.rpartition("=")[2]) for offset in sorted(offsets)])
    again = asked("offsets_reset", app, when=1, **{**RESET, "state": "keep"})
    planned(again)
    assert cases.case_of(again).folder.read("plan.json")["offsets"] == []


@pytest.mark.broker
@pytest.mark.airflow
def test_a_dry_run_should_end_behind_the_plan(operations, admin, unique):
    app = CountingApp(operations.settings, admin, unique("dry"))
    app.feed(100)
    app.run()
    params = {"topology": operations.topology(app.name), "tasks": 3, "reason": "to see"}
    ended, log = operations.run("rescale", params)
    skipped = dict.fromkeys(("approval", "fence", "change", "relaunch", "drain"), "skipped")
    done = dict.fromkeys(("preflight", "plan", "unless_dry_run", "release", "report"), "success")
    assert ended == {"run": "success", "tasks": {**done, **skipped}}
    assert "3 tasks instead of [2]" in log
    assert "dry run, nothing was changed; report: " in log
