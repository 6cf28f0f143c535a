"""Every command that changes a stopped application holds it meanwhile, as Airflow's DAGs do (`tidemark.supervision.hold`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.changes import ChangingApp, version
from tests.support.counting import NO_PROBE, Crash, committed

from tidemark.clock import wall_clock_ms
from tidemark.errors import ApplicationHeld, StartRefused, TaskLocked
from tidemark.instance.assembly import make_instance
from tidemark.kafka.operator_acls import Command
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.rescale import Rescale
from tidemark.operations.change.reset import Reset
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.upgrade import Upgrade
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources, past_sources
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.rewind.build import PointInTimeBuilder
from tidemark.operations.rewind.rewind import REWINDS_FOLDER, Rewind
from tidemark.operations.workspace import Workspace, new_id, unfinished, workspaces
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.supervision.hold import (
    Hold,
    acting_for,
    case_path,
    read_hold,
    release_hold,
    stale_because,
    take_hold,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[4]
COMMANDS = ("restore run", "restore rollback", "rewind", "upgrade", "rescale", "reset", "repair")


class HeldApp(ChangingApp):
    """Runs each command with a look into the middle of it, where somebody approves or something is moved."""

    state_after_reset = StateAfter.EMPTY

    def __init__(self, settings, admin, name) -> None:
        super().__init__(settings, admin, name)
        self.feed(400)
        self.run()
        self.then_ms = wall_clock_ms()
        self.feed(400)
        self.run()

    def _context(self, copies):
        found = copies(self.plan, self.settings)
        return OperationContext.of(self.plan, self.settings, found, wall_clock_ms, Command.RESTORE)

    def prepare(self, command: str) -> None:
        """What the command needs to find."""
        if command == "restore rollback":
            self.command("restore run", lambda: None)
        elif command == "upgrade":
            self.become(version(self.name, "2", "total", n="count(*)"))

    def command(self, command: str, look) -> None:
        def approve(_plan) -> bool:
            look()
            return True

        def probe(point: str) -> None:
            if point in ("swap-between", "restore-built"):
                look()

        self.leave_group()
        listener, said = LoggingRestoreListener(), print
        if command == "restore run":
            context = self._context(copy_sources)
            made = make_plan(context.evidence, new_id(), None)
            workspace = Workspace(self.settings.state_dir, self.name, made.restore_id)
            workspace.create(made)
            RestoreRun(context, workspace, listener, probe, said).run()
        elif command == "restore rollback":
            workspace = workspaces(self.settings.state_dir, self.name)[0]
            run = RestoreRun(self._context(copy_sources), workspace, listener, NO_PROBE, said)
            swap_back = Workspace.swap_back

            def seen(*args):
                look()
                swap_back(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Workspace, "swap_back", seen)
                run.roll_back()
        elif command == "rewind":
            builder = PointInTimeBuilder(self._context(past_sources), listener, NO_PROBE, said)
            workspace = Workspace(self.settings.state_dir, self.name, new_id(), REWINDS_FOLDER)
            assert Rewind(builder, workspace, NO_PROBE, said).run(self.then_ms, approve)
        elif command == "repair":
            plan, settings = self.plan, self.settings
            Repair(plan, settings, wall_clock_ms, ["n"], None, listener, NO_PROBE, lambda _line: look()).run(approve)
        else:
            first = (self.plan, self.settings, wall_clock_ms)
            work = {
                "upgrade": lambda: Upgrade(*first, ["n=total"], [], [], listener, NO_PROBE, said),
                "rescale": lambda: Rescale(*first, 3, listener, NO_PROBE, said),
                "reset": lambda: Reset(
                    *first, ResetTo.EARLIEST, self.state_after_reset, {}, None, listener, NO_PROBE, said
                ),
            }[command]()
            assert work.run(approve)


@pytest.fixture
def app(settings, admin, unique):
    return HeldApp(settings, admin, unique("held"))


@pytest.mark.parametrize("command", COMMANDS)
def test_should_hold_the_application_while_a_command_changes_it(app, command):
    var_dir, holds = app.settings.var_dir, []
    app.prepare(command)

    def look() -> None:
        hold = read_hold(var_dir, app.name)
        assert hold.process.pid == os.getpid()
        assert stale_because(var_dir, app.name, hold) is None
        with pytest.raises(ApplicationHeld, match="is held by"):
            make_instance(app.plan, app.settings, 1, "counting", NO_PROBE)
        with pytest.raises(TaskLocked, match="held by"):
            take_hold(var_dir, app.name, Hold("a case", "why", 5))
        holds.append(hold)

    app.command(command, look)
    assert holds
    assert read_hold(var_dir, app.name) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_should_refuse_while_a_case_holds_the_application_and_run_when_it_acts_for_that_case(app, command):
    var_dir = app.settings.var_dir
    app.prepare(command)
    before = committed(app)
    hold = take_hold(var_dir, app.name, Hold("c9", "a case", 5, (0,)))
    with pytest.raises(TaskLocked, match="held by c9"):
        app.command(command, lambda: pytest.fail("it went on"))
    assert committed(app) == before
    assert read_hold(var_dir, app.name) == hold
    with acting_for("c9"):
        app.command(command, lambda: None)
    assert read_hold(var_dir, app.name) == hold, "the case goes on after this step"
    release_hold(var_dir, app.name, "c9")


def test_should_release_the_hold_of_a_command_that_fails_in_the_middle(app):
    def fail() -> None:
        raise Crash

    for command in ("rewind", "reset", "restore run"):
        with pytest.raises(Crash):
            app.command(command, fail)
        assert read_hold(app.settings.var_dir, app.name) is None


@pytest.mark.parametrize("command", ["rewind", "upgrade", "rescale", "reset", "repair"])
def test_should_refuse_while_a_killed_restore_is_unfinished(app, command):
    def fail() -> None:
        raise Crash

    with pytest.raises(Crash):
        app.command("restore run", fail)
    (left,) = unfinished(app.settings.state_dir, app.name)
    app.prepare(command)
    before, hold = committed(app), Hold("c1", "its case is over", 5)
    take_hold(app.settings.var_dir, app.name, hold)
    report = case_path(app.settings.var_dir, app.name, "c1") / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text("{}")
    with pytest.raises(StartRefused, match=f"`tidemark restore run NAME --resume {left.folder.name}`"):
        app.command(command, lambda: None)
    assert committed(app) == before
    assert read_hold(app.settings.var_dir, app.name) == hold, "nothing may be launched"


def test_should_end_an_instance_that_started_between_the_hold_and_the_locks(app, monkeypatch):
    """The instance saw no hold, and locks its folder after the hold was taken: it ends and releases the folder."""
    var_dir = app.settings.var_dir
    taken = []

    def after_preflight(*args):
        take_hold(var_dir, app.name, Hold("c9", "a case", 5))
        taken.append(args)
        return preflight(*args)

    from tidemark.instance import assembly

    preflight = assembly.preflight
    monkeypatch.setattr(assembly, "preflight", after_preflight)
    with pytest.raises(ApplicationHeld, match="held by c9"):
        make_instance(app.plan, app.settings, 0, "counting", NO_PROBE)
    assert taken
    release_hold(var_dir, app.name, "c9")
    monkeypatch.undo()
    app.run()


def test_should_take_over_the_hold_of_a_killed_command(app, tmp_path, monkeypatch):
    """The command is killed during the swap; the next one names the hold that it takes over, and continues."""
    name = app.write_module(tmp_path)
    runner = tmp_path / "command.py"
    runner.write_text(
        "import sys, topologies\n"
        f"topologies.__path__ = [*topologies.__path__, {str(tmp_path)!r}]\n"
        "sys.argv[0] = 'tidemark'\n"
        "from tidemark.cli.main import run\n"
        "run()\n"
    )
    module = tmp_path / f"{name}.py"
    module.write_text(
        f"from tests.support.changes import version_one\ndef topology():\n    return version_one({app.name!r})\n"
    )
    arm_file = tmp_path / "arm.json"
    environment = {
        **os.environ, **app.settings.as_environment(), "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}",
        "TIDEMARK_PROBE": "tests.system.crash.probe:kill", "TEST_CRASH_ARM": str(arm_file),
    }  # fmt: skip

    def tidemark(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(runner), *arguments], env=environment, cwd=ROOT, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip

    arm_file.write_text('{"point": "swap-between", "skip": 0, "signal": "SIGKILL"}')
    killed = tidemark("restore", "run", name, "--yes")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    hold = read_hold(app.settings.var_dir, app.name)
    assert hold.reason == f"tidemark restore run {name} --yes"
    assert "was killed" in stale_because(app.settings.var_dir, app.name, hold)
    restore_id = workspaces(app.settings.state_dir, app.name)[0].folder.name
    assert hold.continued_by == f"tidemark restore run NAME --resume {restore_id}"
    cleaned = tidemark("clean", "run", name)
    assert f"tidemark restore run NAME --resume {restore_id}" in " ".join(cleaned.stdout.split())
    assert read_hold(app.settings.var_dir, app.name) == hold
    done = tidemark("restore", "run", name, "--yes", "--resume", restore_id)
    assert done.returncode == 0, done.stderr
    assert "the stale hold of" in " ".join(done.stdout.split())
    assert read_hold(app.settings.var_dir, app.name) is None
