"""A disk that gets full during a restore: the message says so, the old state stays, and the restore can continue later."""

from __future__ import annotations

import shutil

import pytest
from tests.integration.restore.test_restore_run import context_of, counts_of
from tests.support.counting import NO_PROBE, CountingApp
from tests.system.crash import disk

from tidemark.errors import StartRefused, StoreFailed
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.workspace import RestoreState, Workspace, new_id, workspaces
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(480),
    pytest.mark.skipif(not disk.may_mount(), reason="mounting a disk that can be full takes root"),
]


@pytest.fixture
def app(settings, admin, unique, tmp_path):
    """Two partitions, 200 keys, everything committed, nothing running, on a disk of its own."""
    with disk.mounted(tmp_path / "disk"):
        made = CountingApp(
            settings.model_copy(update={"state_dir": tmp_path / "disk" / "state"}), admin, unique("counting")
        )
        made.feed(2000)
        made.run()
        yield made


def fill(app):
    disk.fill(app.settings.state_dir.parent)


def free(app):
    disk.free(app.settings.state_dir.parent)


def started(app, probe=NO_PROBE):
    app.leave_group()
    context = context_of(app)
    made = make_plan(context.evidence, new_id(), SourceOfState.CHANGELOG)
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    return RestoreRun(context, workspace, LoggingRestoreListener(), probe, [].append), made


def stored(app):
    return counts_of(app)


def test_should_refuse_to_begin_without_room_for_the_plan_and_change_nothing(app):
    before = stored(app)
    fill(app)
    run, made = started(app)
    with pytest.raises(StartRefused, match=r"cannot write .*No space left on device.*free disk space and plan again"):
        run.workspace.create(made)
    free(app)
    assert stored(app) == before
    assert workspaces(app.settings.state_dir, app.name) == []
    run.workspace.create(made)
    assert run.run().state is RestoreState.DONE
    assert stored(app) == before


@pytest.mark.parametrize("point", ["restore-whole", "restore-built", "swap-between", "swap-one"])
def test_should_stop_when_the_disk_is_full_and_continue_as_its_message_says_once_there_is_room(app, point):
    before = stored(app)
    passed = []

    def full(name):
        if name == point and not passed:
            passed.append(name)
            fill(app)

    run, made = started(app, full)
    run.workspace.create(made)
    with pytest.raises(StartRefused, match=r"[Nn]o space left on device.*free disk space") as refused:
        run.run()
    assert passed
    free(app)
    if f"--resume {made.restore_id}" not in str(refused.value):
        assert "the old state is in place" in str(refused.value)
        assert stored(app) == before
        run, made = started(app)
        run.workspace.create(made)
    assert run.run().state is RestoreState.DONE
    assert stored(app) == before
    app.feed(100)
    app.run()
    assert stored(app) == app.expected


def test_should_refuse_to_roll_back_without_room_and_roll_back_once_there_is_some(app):
    run, made = started(app)
    run.workspace.create(made)
    run.run()
    fill(app)
    with pytest.raises(StartRefused, match=r"No space left on device.*free disk space.*tidemark restore rollback"):
        run.roll_back()
    free(app)
    assert run.roll_back().state is RestoreState.ROLLED_BACK
    app.feed(100)
    app.run()
    assert stored(app) == app.expected


def test_should_refuse_a_start_when_the_disk_is_full_and_start_once_there_is_room(app):
    """Without this refusal an instance without room for a task's lock ended with a traceback."""
    before = stored(app)
    shutil.rmtree(app.settings.state_dir)
    fill(app)
    with pytest.raises(StoreFailed, match=r"No space left on device.*free its disk"):
        app.run()
    free(app)
    app.run()
    assert stored(app) == before
