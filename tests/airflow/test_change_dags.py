"""What the tasks of `upgrade`, `rescale` and `offsets_reset` do, on a real broker; and the order that they come in."""

from __future__ import annotations

import shutil

import pytest
from airflow.sdk.exceptions import AirflowFailException
from test_operations_dags import operations as operations  # The fixture.
from tests.change.changing import ChangingApp, come_to
from tests.change.test_upgrade import description
from tests.restore.counting import CountingApp

from tidemark.hold import hold_path
from tidemark_airflow import changes

UPGRADED = {"rename": ["n=total"], "drop": [], "add": ["total.most=0"]}


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
def test_should_plan_hold_change_and_release(app):
    params = {"topology": app.module, **UPGRADED}
    assert "`n → total` is copied: renamed from n; most is 0" in changes.plan("upgrade", params)[0]
    assert description(app).version == "1"
    changes.fence("upgrade", "manual", params)
    hold = hold_path(app.settings.var_dir, app.name)
    assert "upgrade manual" in hold.read_text()
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change("upgrade", params)
    assert description(app).version == "2"
    assert not changes.release("upgrade", "another", params)
    assert changes.release("upgrade", "manual", params)
    assert not hold.exists()


@pytest.mark.broker
def test_should_fail_for_good_with_the_reasons_where_it_is_refused(app):
    with pytest.raises(AirflowFailException, match="--rename n=NEW"):
        changes.plan("upgrade", {"topology": app.module, "rename": [], "drop": [], "add": []})
    with pytest.raises(AirflowFailException, match="tidemark upgrade"):
        changes.plan("rescale", {"topology": app.module, "tasks": 3})


@pytest.mark.broker
def test_should_plan_rescales_and_resets(app, tmp_path, monkeypatch):
    app.module = app.for_commands(tmp_path, monkeypatch)
    write(app, tmp_path, "version_one({name!r})")
    assert "3 tasks instead of [2]" in changes.plan("rescale", {"topology": app.module, "tasks": 3})[0]
    reset = {"topology": app.module, "to": "earliest", "state": "empty", "offsets": [], "time": ""}
    assert "offsets to earliest, state: empty" in changes.plan("offsets_reset", reset)[0]
    changes.change("offsets_reset", reset)
    assert "records are processed again" not in changes.plan("offsets_reset", reset)[0]
    with pytest.raises(AirflowFailException, match="time"):
        changes.plan("offsets_reset", {**reset, "to": "time", "time": "yesterday"})


@pytest.mark.broker
def test_a_reset_should_go_where_its_plan_went_whatever_came_since(app, tmp_path, monkeypatch):
    app.module = app.for_commands(tmp_path, monkeypatch)
    write(app, tmp_path, "version_one({name!r})")
    app.feed(200)
    reset = {"topology": app.module, "to": "latest", "state": "keep", "offsets": [], "time": ""}
    _, offsets = changes.plan("offsets_reset", reset)
    app.feed(300)
    for _ in range(2):  # Tried again, it finds what is done.
        changes.change("offsets_reset", reset, offsets)
    assert come_to(app, [int(offset.rpartition("=")[2]) for offset in sorted(offsets)])
    assert changes.plan("offsets_reset", {**reset, "to": "earliest"})[1] == []


@pytest.mark.broker
@pytest.mark.airflow
def test_a_dry_run_should_end_behind_the_plan(operations, admin, unique):
    app = CountingApp(operations.settings, admin, unique("dry"))
    app.feed(100)
    app.run()
    ended, log = operations.run("rescale", {"topology": operations.topology(app.name), "tasks": 3})
    skipped = dict.fromkeys(("wanted", "approval", "fence", "change", "done"), "skipped")
    assert ended == {"run": "success", "tasks": {"plan": "success", "release": "success", **skipped}}
    assert "3 tasks instead of [2]" in log
