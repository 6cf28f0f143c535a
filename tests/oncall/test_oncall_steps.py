"""Each step of a restore on a real broker: killed and run again, undone, and refused where it must be."""

from __future__ import annotations

import shutil
from dataclasses import asdict

import pytest
from tests.restore.counting import NO_PROBE, CountingApp, Crash
from tests.restore.test_restore_run import counts_of

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed, StartRefused
from tidemark.hold import Hold, take_hold
from tidemark.oncall.case import Case, CaseFolder
from tidemark.oncall.drain import drain
from tidemark.oncall.planning import PlanKind
from tidemark.oncall.report import RESTORE
from tidemark.oncall.steps import FASTEST, OnCall
from tidemark.restore.kit import RestoreKit
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.sources import copy_sources, past_sources
from tidemark.restore.workspace import RestoreState, new_id, workspaces

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def app(settings, admin, unique):
    """Two partitions, 50 keys, everything committed, nothing running."""
    made = CountingApp(settings, admin, unique("counting"))
    made.feed(1000, keys=50)
    made.run()
    return made


def call_of(app, target="latest", source=FASTEST, probe=NO_PROBE, case_id=None):
    """A case that was asked for just now."""
    case_id = case_id or new_id()
    folder = CaseFolder.of(app.settings.var_dir, app.name, case_id, wall_clock_ms)
    asked = {"source": source, "target": target}
    folder.open(Case(case_id, RESTORE, "made", app.name, asked, False, "a | <b>", wall_clock_ms()))
    kits = (
        RestoreKit.of(app.plan, app.settings, find(app.plan, app.settings), wall_clock_ms)
        for find in (copy_sources, past_sources)
    )
    return OnCall(*kits, folder, LoggingRestoreListener(), probe, [].append)


def everything(folder):
    """Every file below, with its bytes; locks and RocksDB's own logs left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "LOCK", "LOG") and not path.name.startswith("LOG.")
    }


def crash_at(*points):
    """A probe that crashes the first time it passes each point, and the points that are still to come."""
    left = set(points)

    def crash(at):
        if at in left:
            left.remove(at)
            raise Crash

    return crash, left


def test_should_plan_without_changing_anything_and_tell_what_it_would_do(app):
    before = everything(app.settings.state_dir)
    call = call_of(app)
    call.preflight()
    planned = call.plan()
    assert everything(app.settings.state_dir) == before
    assert workspaces(app.settings.state_dir, app.name) == []
    assert planned.kind is PlanKind.RESTORE
    assert f"nothing new in {app.name}-out meanwhile" in planned.told
    assert "2 task folders" in planned.told
    assert "| 0_1 | n | local |" in planned.told
    assert r"a \| &lt;b>" in planned.told


def test_should_come_to_the_same_end_when_each_step_is_killed_and_run_again(app):
    shutil.rmtree(app.settings.state_dir)
    probe, left = crash_at("restore-whole", "restore-built", "swap-between", "swap-one")
    call = call_of(app, probe=probe)
    call.preflight()
    call.plan()
    for step in (call.restore, call.verify, call.swap):
        while True:
            try:
                step()
                break
            except Crash:
                continue
        # A task may be killed after its last act as well.
        step()
    assert left == set()
    assert counts_of(app) == app.expected
    figures = next(note.figures for note in call.folder.notes() if note.what == "figures")
    assert (figures["keys"], figures["rpo_offsets"]) == (len(app.expected), 0)
    assert (figures["left_out"], figures["differing"], figures["evidence"]) == (0, 0, "ok")
    assert sum(store["compared"] for store in call.figures()) == len(app.expected)
    app.feed(200, keys=50)
    app.run()
    drain(call.restoring, 10, call.say)
    assert counts_of(app) == app.expected


def test_should_bring_the_old_state_back_from_wherever_it_failed(app):
    before = counts_of(app)
    for reached in (0, 1, 2, 3):
        call = call_of(app)
        call.plan()
        for step in (call.restore, call.verify, call.swap)[:reached]:
            step()
        told = call.roll_back()
        assert counts_of(app) == before
        assert call.roll_back() == told or reached
        assert ("nothing was begun" in told) == (reached == 0)
    assert all(w.progress().state in (RestoreState.ROLLED_BACK, RestoreState.ABORTED) for w in _workspaces(app))
    app.feed(100, keys=50)
    app.run()
    assert counts_of(app) == app.expected


def _workspaces(app):
    return workspaces(app.settings.state_dir, app.name)


def test_should_notice_an_instance_that_ran_between_the_steps(app):
    call = call_of(app)
    call.plan()
    call.restore()
    app.feed(50, keys=50)
    app.run()
    with pytest.raises(StartRefused, match="50 source offsets were committed after the state was built"):
        call.verify()


def test_should_refuse_before_anything_is_done(app, monkeypatch):
    with pytest.raises(StartRefused, match="target: 'nonsense' is no time"):
        call_of(app, target="nonsense").preflight()
    other = call_of(app)
    other.plan()
    other.restore()
    with pytest.raises(PreflightFailed, match="is swapping: finish it"):
        call_of(app).preflight()
    other.roll_back()
    take_hold(app.settings.var_dir, app.name, Hold("c9", "an upgrade", 5))
    with pytest.raises(PreflightFailed, match="held by c9"):
        call_of(app).preflight()
    (app.settings.var_dir / "instances" / f"{app.name}.hold.json").unlink()
    full = shutil.disk_usage(app.settings.state_dir)._replace(free=1)
    monkeypatch.setattr("tidemark.oncall.preflight.shutil.disk_usage", lambda _folder: full)
    with pytest.raises(PreflightFailed, match="1 are free"):
        call_of(app).preflight()


def test_should_tell_when_what_waits_is_not_drained(app):
    app.feed(60, keys=50)
    call = call_of(app)
    with pytest.raises(OutcomeUnknown, match="60 source offsets still wait after 0 s"):
        drain(call.restoring, 0.1, call.say)


def test_should_go_back_to_source_offsets_and_finish_a_rewind_that_was_killed(app):
    facts = call_of(app).rewinding.facts()
    stood = {p: c.offset for found in facts.values() for p, c in found.committed.items()}
    then = counts_of(app)
    app.feed(300, keys=70)
    app.run()
    now = counts_of(app)
    before = everything(app.settings.state_dir)
    probe, _ = crash_at("rewind-verified")
    call = call_of(app, target=",".join(f"{p}={o}" for p, o in stood.items()), probe=probe)
    call.preflight()
    planned = call.plan()
    assert everything(app.settings.state_dir) == before
    assert planned.kind is PlanKind.REWIND
    assert "emitted again" in planned.told
    assert asdict(planned)["plan"]["tasks"][0]["to_offsets"] in [{p.topic: o} for p, o in stood.items()]
    with pytest.raises(Crash):
        call.restore()
    call.restore()
    call.restore()
    call.verify()
    call.swap()
    assert counts_of(app) == then
    with pytest.raises(StartRefused, match="cannot be taken back"):
        call.roll_back()
    app.run()
    assert counts_of(app) == now == app.expected


def test_should_not_rewind_to_other_batches_than_were_approved(app):
    at_ms = wall_clock_ms()
    app.feed(100, keys=50)
    app.run()
    call = call_of(app, target=str(at_ms))
    planned = call.plan().to_dict()
    planned["plan"]["tasks"][0]["to_batch"] += 1
    call.folder.write("plan.json", planned)
    with pytest.raises(StartRefused, match="no longer lead to the batches that were approved"):
        call.restore()
    assert counts_of(app) == app.expected
    assert "nothing was committed" in call.roll_back()
