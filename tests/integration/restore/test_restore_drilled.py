"""Restores after drills, on a real broker: suspected stores are not used as a source, and measured rates are."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import PurePosixPath

import pytest
from tests.integration.operations.case.test_oncall_steps import call_of
from tests.support.counting import NO_PROBE, CountingApp
from tests.system.drill.running import batches, running, tamper
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.drill_history.store_verdicts import last_verdicts
from tidemark.operations.drill_history.table import past_drills
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.workspace import RestoreState, Workspace, new_id
from tidemark.recovery.candidates import MEASURED
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.supervision.savepoint_ids import begun_ms

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

LOCAL, SAVEPOINT = SourceOfState.LOCAL, SourceOfState.SAVEPOINT
KEYS = 12_000


@pytest.fixture
def app(settings, admin, unique):
    made = CountingApp(settings, admin, unique("counting"))
    made.settings = made.settings.model_copy(update={"commit_interval_ms": 100})
    return made


def context_of(app):
    return OperationContext.of(app.plan, app.settings, copy_sources(app.plan, app.settings), wall_clock_ms)


def drill(name):
    """By command, which keeps it; whether it passed."""
    return CliRunner().invoke(build(), ["drill", "run", name, "--follow-batches", "1"]).exit_code == 0


def drills(app):
    facts = FactsDatabase(app.settings)
    try:
        return [past.report for past in past_drills(facts, app.name)]
    finally:
        facts.close()


def test_should_not_copy_from_a_store_that_the_last_drill_found_differing(app, tmp_path, monkeypatch):
    app.feed(2000)
    app.run()
    name = app.for_commands(tmp_path, monkeypatch)
    with running(app):
        assert drill(name)
        tamper(app, {"k00150": 999}, partial(batches, app))
        assert not drill(name)
    failed, passed = drills(app)
    (wrong,) = {store["task"] for store in failed["stores"] if store["differing"]}
    context = context_of(app)
    suspects = {str(task): verdict for (task, _), verdict in last_verdicts(app.settings, context.plan).items()}
    assert {task: verdict.is_suspect for task, verdict in suspects.items()} == {
        task: task == wrong for task in ("0_0", "0_1")
    }

    made = make_plan(context.evidence, new_id(), None)
    assert RestorePlan.from_json(made.to_json()) == made
    for store in made.stores:
        summary = [line for line in store.passed_over if "is suspected" in line]
        assert (store.source is LOCAL) == (store.task != wrong)
        assert bool(summary) == (store.task == wrong)
        if store.task == wrong:
            assert any(
                f"the drill {failed['drill_id']} (" in line and "found 1 keys that differ" in line for line in summary
            )
            assert any(str(app.store_folder(int(wrong[-1]))) in line for line in summary)
            assert all(one in "".join(summary) for one in failed["savepoints"])
            if store.source is SAVEPOINT:
                assert begun_ms(PurePosixPath(store.location).parent.name) <= begun_ms(passed["savepoints"][-1])
    # A person may know better, and on-call is told the same.
    assert {store.source for store in make_plan(context.evidence, new_id(), LOCAL).stores} == {LOCAL}
    call = call_of(app)
    assert "is suspected: the drill" in call.plan().summary
    assert f"| {wrong} | n | local |" not in call.plan().summary

    # Until a restore has replaced it: the record of the stranger is then in both.
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    workspace.create(made)
    done = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert done.state is RestoreState.DONE
    assert {store.source for store in make_plan(context.evidence, new_id(), None).stores} == {LOCAL}


def test_should_read_the_changelog_when_every_savepoint_is_suspected_too(app, tmp_path, monkeypatch):
    app.feed(600)
    app.run()
    name = app.for_commands(tmp_path, monkeypatch)
    with running(app):
        tamper(app, {"k00150": 999}, partial(batches, app))
        assert not drill(name)
    shutil.rmtree(app.settings.state_dir / "0")
    made = make_plan(context_of(app).evidence, new_id(), None)
    (wrong,) = {store["task"] for store in drills(app)[0]["stores"] if store["differing"]}
    assert {store.source for store in made.stores if store.task == wrong} == {SourceOfState.CHANGELOG}
    assert {store.source for store in make_plan(context_of(app).evidence, new_id(), SAVEPOINT).stores} == {SAVEPOINT}


def test_should_estimate_with_the_rates_that_drills_measured(app, tmp_path, monkeypatch):
    app.feed(KEYS, keys=KEYS)
    app.run()
    name = app.for_commands(tmp_path, monkeypatch)
    before = make_plan(context_of(app).evidence, new_id(), SourceOfState.CHANGELOG)
    assert before.rates == MEASURED
    assert "assumed, no drill has measured it" in before.rates_from
    with running(app):
        assert drill(name)
    (report,) = drills(app)
    rate = report["rates"]["changelog_offsets_per_s"]
    whole = [store for store in report["stores"] if store["way"] == "whole changelog"]
    offsets = sum(store["end_offset"] - store["from_offset"] for store in whole)
    assert rate == pytest.approx(offsets / sum(store["seconds"] for store in whole), rel=0.01)
    made = make_plan(context_of(app).evidence, new_id(), SourceOfState.CHANGELOG)
    assert made.rates.changelog_offsets_per_s == rate
    for store in made.stores:
        assert store.eta_s == pytest.approx((store.end_offset - store.from_offset) / rate, abs=0.001)
    assert made.eta_s(1) == pytest.approx(2 * sum(store.end_offset for store in made.stores) / rate, rel=0.01)
    assert f"measured by the drill {report['drill_id']}" in made.rates_from
    shown = CliRunner().invoke(build(), ["restore", "plan", name])
    assert f"measured by the drill {report['drill_id']}" in " ".join(shown.output.split())
    call = call_of(app)
    assert f"measured by the drill {report['drill_id']}" in call.plan().summary


def test_should_plan_without_drills_when_their_history_cannot_be_read(app):
    app.feed(100)
    app.run()
    app.settings = app.settings.model_copy(update={"var_dir": app.settings.state_dir / "0" / app.name / ".lock"})
    made = make_plan(context_of(app).evidence, new_id(), None)
    assert {store.source for store in made.stores} == {LOCAL}
    assert "drills are not taken into account: the database of facts" in made.rates_from
