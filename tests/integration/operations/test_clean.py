"""`tidemark clean` on a real broker: what it removes, what it keeps and why, and that starts and restores stay the same."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.integration.restore.test_restore_run import SeenTwice, with_unlogged_store
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, Crash, crash_at
from tests.support.purging import purge
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused, TaskLocked
from tidemark.folder_lock import FolderLock, is_locked
from tidemark.instance.assembly import make_instance
from tidemark.names import TaskId, TopicPartition
from tidemark.operations import leftovers
from tidemark.operations.change.reset import RESETS_FOLDER
from tidemark.operations.clean import Clean
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.leftovers import REMOVED_FOLDER, LeftoverKind
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.rewind.rewind import REWINDS_FOLDER
from tidemark.operations.workspace import RestoreState, Workspace, new_id, unfinished, workspaces
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import Resume, plan_start
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.local_copies import read_store_checkpoint
from tidemark.stores.directory import STORES_FOLDER
from tidemark.supervision.hold import Hold, HoldingProcess, case_path, hold_path, read_hold, take_hold
from tidemark.temporary_folder import temporary_folders
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

DEAD = replace(HoldingProcess.own(), pid=2**22 + 1, command="tidemark restore run x")


def context_of(app: CountingApp) -> OperationContext:
    return OperationContext.of(app.plan, app.settings, copy_sources(app.plan, app.settings), wall_clock_ms)


def clean(app, *, previous=False, approve=lambda _made: True, probe=NO_PROBE, said=None):
    app.leave_group()
    return Clean(context_of(app).evidence, previous, probe, (said if said is not None else []).append).run(approve)


def show(app, *, previous=False):
    return Clean(context_of(app).evidence, previous, NO_PROBE, print).show()


def judged(made, kind):
    """Path and whether it goes, of one kind."""
    return {each.leftover.path: each for each in made.judged if each.leftover.kind is kind}


def stores(app) -> Path:
    return app.state / "0_0" / STORES_FOLDER


def restored(app, probe=NO_PROBE, asked=None):
    app.leave_group()
    context = context_of(app)
    made = make_plan(context.evidence, new_id(), asked)
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    workspace.create(made)
    RestoreRun(context, workspace, LoggingRestoreListener(), probe, print).run()
    return workspace


def folder_of_instance(app, number: int) -> Path:
    return app.settings.state_dir / str(number) / app.name


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def app(settings, admin, unique):
    """Instance 1 committed last and has both tasks; instance 0 has what it had before that."""
    made = CountingApp(settings, admin, unique("cleaned"))
    made.feed(600)
    made.run()
    stale = settings.state_dir.with_name("stale")
    shutil.copytree(made.state, stale)
    made.feed(600)
    made.run(number=1)
    shutil.rmtree(made.state)
    shutil.copytree(stale, made.state)
    return made


@pytest.fixture
def remembering(settings, admin, unique):
    """The same, with a store that is not logged."""
    made = CountingApp(settings, admin, unique("unlogged"), topology=with_unlogged_store, source=SeenTwice)
    made.feed(600)
    made.run()
    stale = settings.state_dir.with_name("stale")
    shutil.copytree(made.state, stale)
    made.feed(600)
    made.run(number=1)
    shutil.rmtree(made.state)
    shutil.copytree(stale, made.state)
    return made


def test_should_remove_the_folders_of_an_instance_whose_tasks_others_have_continued(app):
    before = files_below(folder_of_instance(app, 1))
    made = show(app)
    assert {path: each.is_removed for path, each in judged(made, LeftoverKind.STALE_TASK).items()} == {
        app.state / "0_0": True, app.state / "0_1": True,
    }  # fmt: skip
    assert made.bytes > 0
    assert (app.state / "0_0" / STORES_FOLDER / "n").exists(), "it was only shown"
    assert clean(app, approve=lambda _made: False) is None
    assert (app.state / "0_0" / STORES_FOLDER / "n").exists()
    done = clean(app)
    assert {leftover.path for leftover in done.removed} == {app.state / "0_0", app.state / "0_1"}
    assert not (app.state / "0_0").exists()
    assert not any((app.settings.state_dir / REMOVED_FOLDER / app.name).glob("*"))
    after = files_below(folder_of_instance(app, 1))
    assert {name: body for name, body in after.items() if not name.endswith(".lock")} == {
        name: body for name, body in before.items() if not name.endswith(".lock")
    }
    assert show(app).judged == ()
    app.feed(300)
    app.run(number=0)
    assert read_store_checkpoint(app.store_folder(0)).batch > 0


def test_should_keep_the_only_copy_with_the_last_commit(app):
    """The owner's folder is gone: the copy that is left is stale, but a restore from it is the fastest."""
    shutil.rmtree(folder_of_instance(app, 1))
    assert show(app).judged == ()
    assert clean(app).judged == ()
    assert app.store_folder(0).exists()


def test_should_keep_a_stale_folder_when_the_owners_folder_is_worse(app):
    shutil.rmtree(folder_of_instance(app, 1) / "0_0" / STORES_FOLDER / "n")
    (folder_of_instance(app, 1) / "0_0" / STORES_FOLDER / "other").mkdir()
    clean(app)
    assert app.store_folder(0).exists()
    assert not (app.state / "0_1").exists()


def test_should_keep_everything_of_a_task_whose_changelog_is_damaged(app):
    (stores(app) / "n.corrupt-5").mkdir()
    purge(app.admin, app.settings, {TopicPartition(f"{app.name}-n-changelog", 0): 10})
    made = clean(app)
    assert {leftover.path for leftover in made.removed} == {app.state / "0_1"}
    assert app.store_folder(0).exists()
    assert (stores(app) / "n.corrupt-5").exists()
    assert folder_of_instance(app, 1).joinpath("0_0", STORES_FOLDER, "n").exists()


def test_should_keep_the_only_contents_of_an_unlogged_store_and_say_so(remembering):
    app = remembering
    shutil.rmtree(folder_of_instance(app, 1) / "0_0" / STORES_FOLDER / "seen")
    found = judged(show(app), LeftoverKind.STALE_TASK)
    assert found[app.state / "0_1"].is_removed
    assert not found[app.state / "0_0"].is_removed
    assert "0_0/seen is not logged" in found[app.state / "0_0"].why
    clean(app)
    assert (stores(app) / "seen").exists()
    assert not (app.state / "0_1").exists()


@pytest.mark.parametrize("theirs_is_whole", [True, False])
def test_should_keep_an_unreadable_copy_of_an_unlogged_store_when_no_other_copy_can_be_read(
    remembering, theirs_is_whole
):
    app = remembering
    (stores(app) / "seen" / "CURRENT").write_text("no database")
    if not theirs_is_whole:
        (folder_of_instance(app, 1) / "0_0" / STORES_FOLDER / "seen" / "CURRENT").write_text("no database")
    (app.state / "0_1" / STORES_FOLDER / "seen.corrupt-17").mkdir()
    clean(app)
    assert (stores(app) / "seen").exists() is not theirs_is_whole
    assert (app.state / "0_1" / STORES_FOLDER / "seen.corrupt-17").exists(), "nor with the folder that it lies in"


def test_should_remove_unused_folders_and_keep_the_only_one_left_of_a_store(remembering):
    app = remembering
    clean(app)
    theirs = folder_of_instance(app, 1) / "0_0" / STORES_FOLDER
    for name in ("n.corrupt-17", "seen.corrupt-17", "n.restoring"):
        shutil.copytree(theirs / "seen", theirs / name)
    clean(app)
    assert sorted(path.name for path in theirs.iterdir()) == ["n", "seen", "seen.corrupt-17"]


def test_should_not_mistake_a_store_for_a_leftover_because_of_its_name(settings, admin, unique):
    def named(name: str) -> Topology:
        topology = Topology(name)
        topology.stream(f"{name}-in", schema="id STRING").group_by_key().count(name="n", store="n.corrupt-7").to(
            f"{name}-out"
        )
        return topology

    app = CountingApp(settings, admin, unique("named"), topology=named)
    app.feed(100)
    app.run()
    assert (stores(app) / "n.corrupt-7").exists()
    assert show(app).judged == ()


def test_should_keep_the_folders_of_a_running_instance_and_remove_the_rest(app):
    restored(app)
    half_built = folder_of_instance(app, 1) / "0_0" / STORES_FOLDER / "n.restoring"
    half_built.mkdir()
    resets = app.settings.state_dir / RESETS_FOLDER / app.name
    resets.mkdir(parents=True)
    instance = make_instance(app.plan, app.settings, 1, "counting", NO_PROBE)
    try:
        made = clean(app, previous=True)
    finally:
        instance.close(None)
    assert {leftover.kind for leftover in made.removed} == {LeftoverKind.PREVIOUS, LeftoverKind.BUILT}
    assert not resets.exists()
    assert half_built.exists()


def test_should_keep_the_folders_of_an_instance_that_starts_between_question_and_answer(app):
    made = []

    def launch(_plan) -> bool:
        made.append(make_instance(app.plan, app.settings, 0, "counting", NO_PROBE))
        return True

    try:
        assert clean(app, approve=launch).removed == []
    finally:
        made[0].close(None)
    assert app.store_folder(0).exists()


def test_should_refuse_while_a_case_holds_the_application_and_leave_its_restore_unchanged(app):
    with pytest.raises(Crash):
        restored(app, crash_at("swap-between"))
    take_hold(
        app.settings.var_dir, app.name, Hold(workspaces(app.settings.state_dir, app.name)[0].folder.name, "why", 5)
    )
    (app.state.parent.parent / REWINDS_FOLDER / app.name / new_id()).mkdir(parents=True)
    before = files_below(app.settings.state_dir)
    made = show(app)
    assert not judged(made, LeftoverKind.UNFINISHED)
    assert not judged(made, LeftoverKind.BUILT)
    if made.removed:
        with pytest.raises(TaskLocked, match="held by"):
            clean(app)
    after = files_below(app.settings.state_dir)
    assert after.keys() == before.keys()


def test_should_leave_an_unfinished_restore_to_its_own_commands(app):
    with pytest.raises(Crash):
        restored(app, crash_at("swap-between"))
    workspace = workspaces(app.settings.state_dir, app.name)[0]
    again = f"`tidemark restore run NAME --resume {workspace.folder.name}`"
    take_hold(app.settings.var_dir, app.name, hold := Hold(DEAD.name, DEAD.command, 5, process=DEAD))
    (app.settings.state_dir / REMOVED_FOLDER / app.name / new_id()).mkdir(parents=True)
    made = show(app, previous=True)
    found = judged(made, LeftoverKind.UNFINISHED)
    assert not found[workspace.folder].is_removed
    assert again in found[workspace.folder].why
    kept = judged(made, LeftoverKind.STALE_HOLD)[hold_path(app.settings.var_dir, app.name)]
    assert (kept.is_removed, again in kept.why) == (False, True)
    removed = {leftover.kind for leftover in clean(app, previous=True).removed}
    assert LeftoverKind.REMOVED in removed
    assert LeftoverKind.STALE_HOLD not in removed
    assert read_hold(app.settings.var_dir, app.name) == hold
    assert (
        RestoreRun(context_of(app), workspace, LoggingRestoreListener(), NO_PROBE, print).run().state
        is RestoreState.DONE
    )
    take_hold(app.settings.var_dir, app.name, hold)
    assert LeftoverKind.STALE_HOLD in {leftover.kind for leftover in clean(app).removed}
    assert read_hold(app.settings.var_dir, app.name) is None


def test_should_keep_what_a_restore_replaced_until_it_is_asked_for(app):
    workspace = restored(app)
    kept = judged(show(app), LeftoverKind.PREVIOUS)[workspace.previous]
    assert not kept.is_removed
    assert "rollback" in kept.why
    clean(app)
    assert workspace.previous.exists()
    clean(app, previous=True)
    assert not workspace.previous.exists()
    with pytest.raises(StartRefused, match="continue with it"):
        RestoreRun(context_of(app), workspace, LoggingRestoreListener(), NO_PROBE, print).roll_back()
    app.feed(200)
    app.run(number=1)


def test_should_keep_replaced_state_when_only_it_has_the_batch_of_the_last_commit(app):
    workspace = restored(app)
    for number in (0, 1):
        shutil.rmtree(folder_of_instance(app, number), ignore_errors=True)
    made = show(app, previous=True)
    assert (
        "only copy of 0_0/n with the last commit's batch" in judged(made, LeftoverKind.PREVIOUS)[workspace.previous].why
    )
    assert clean(app, previous=True).judged == ()
    assert workspace.previous.exists()


def test_should_remove_tasks_that_no_longer_exist_unless_a_commit_record_names_them(app):
    for name in ("0_7", "3_0"):
        shutil.copytree(app.state / "0_0", app.state / name)
    clean(app)
    assert not list(app.state.glob("[03]_[07]/rocksdb/n"))


def test_should_remove_a_stale_hold_and_say_who_held_it(app):
    said = []
    take_hold(app.settings.var_dir, app.name, Hold(DEAD.name, DEAD.command, 5, process=DEAD))
    assert clean(app, approve=lambda _made: False) is None
    assert read_hold(app.settings.var_dir, app.name) is not None, "nothing was approved"
    made = clean(app, said=said)
    assert LeftoverKind.STALE_HOLD in {leftover.kind for leftover in made.removed}
    assert any("stale hold of" in line for line in said)
    assert not hold_path(app.settings.var_dir, app.name).exists()


@pytest.mark.parametrize("point", ["clean-before-rename", "clean-renamed"])
def test_should_continue_where_it_was_killed(app, point):
    with pytest.raises(Crash):
        clean(app, probe=crash_at(point))
    # Whole, or no store any more.
    for task in ("0_0", "0_1"):
        assert (
            not (app.state / task).exists() or read_store_checkpoint(app.state / task / STORES_FOLDER / "n") is not None
        )
    made = clean(app)
    assert made.removed
    assert not any((app.settings.state_dir / REMOVED_FOLDER / app.name).glob("*"))
    assert not list(app.state.glob("0_*"))


def test_should_be_a_command_that_shows_asks_and_removes(app, tmp_path, monkeypatch):
    name = app.for_commands(tmp_path, monkeypatch)
    runner, command = CliRunner(), build()

    def tidemark(*arguments: str, **given):
        return runner.invoke(command, list(arguments), **given)

    shown = tidemark("clean", "plan", name)
    assert shown.exit_code == 0, shown.output
    assert f"nothing was changed; `tidemark clean run {name}` removes it" in shown.output
    assert f"0/{app.name}/0_0" in shown.output
    listed = json.loads(tidemark("clean", "plan", name, "--json").output)
    assert {(each["kind"], each["is_removed"]) for each in listed} == {("stale task folder", True)}
    said = json.loads(tidemark("status", "--json").output)
    assert {each["path"] for each in said["leftovers"] if each["application"] == app.name} == {
        each["path"] for each in listed
    }
    assert "stale task folder" in tidemark("status").output
    assert tidemark("clean", "plan", name, "--yes").exit_code == 2
    assert tidemark("clean", "run", name, "--json").exit_code == 2
    refused = tidemark("clean", "run", name, input="n\n")
    assert refused.exit_code == 1
    assert app.store_folder(0).exists()
    done = tidemark("clean", "run", name, "--yes")
    assert done.exit_code == 0, done.output
    assert "removed 2 leftovers" in done.output
    assert "there is nothing to remove" in tidemark("clean", "run", name, "--yes").output
    assert json.loads(tidemark("status", "--json").output)["leftovers"] == []


def test_should_remove_temporary_files_of_processes_that_have_ended_and_leave_those_in_use(app):
    ended = temporary_folders(app.settings.state_dir, f"{app.name}-7") / "launch"
    (ended / "blockmgr").mkdir(parents=True)
    with FolderLock(temporary_folders(app.settings.state_dir, f"{app.name}-audit") / "launch") as used:
        of_another = temporary_folders(app.settings.state_dir, f"{app.name}-more-0") / "launch"
        of_another.mkdir(parents=True)
        found = judged(show(app), LeftoverKind.TEMPORARY)
        assert {path: each.is_removed for path, each in found.items()} == {ended: True}
        clean(app)
        assert not ended.exists()
        assert used.folder.exists()
        assert of_another.exists()


def test_should_keep_temporary_files_while_a_launch_removes_them_itself(app):
    ended = temporary_folders(app.settings.state_dir, f"{app.name}-0") / "launch"
    ended.mkdir(parents=True)
    said = []
    with FolderLock(ended.parent):
        made = clean(app, said=said)
    assert LeftoverKind.TEMPORARY not in {leftover.kind for leftover in made.removed}
    assert ended.exists()
    assert any(f"{ended} is kept" in line for line in said)


@pytest.mark.parametrize("taken_by", ["a launch", "nobody"])
def test_should_not_fail_on_temporary_files_that_a_launch_has_removed_meanwhile(app, taken_by):
    ended = temporary_folders(app.settings.state_dir, f"{app.name}-0") / "launch"
    ended.mkdir(parents=True)

    def launch(point: str) -> None:
        if point == "clean-before-rename" and taken_by == "a launch":
            shutil.rmtree(ended, ignore_errors=True)

    clean(app, probe=launch)
    assert not ended.exists()


def test_should_remove_the_links_of_a_killed_savepoint_under_its_lock_and_leave_those_in_use(app):
    links = app.settings.state_dir / ".savepoints" / app.name / "20270101T000000-aaaaaa"
    shutil.copytree(app.state / "0_0", links / "0_0")
    shutil.rmtree(app.state)
    commands = app.settings.var_dir / "savepoint-commands" / app.name
    with FolderLock(commands):
        assert show(app).judged == ()
    seen = []

    def take(point: str) -> None:
        seen.append((point, is_locked(commands)))

    assert {leftover.path for leftover in clean(app, probe=take).removed} == {links}
    assert seen == [("clean-before-rename", True), ("clean-renamed", True)]
    assert not links.exists()
    FolderLock(commands).release()


@pytest.mark.parametrize("has_state", [True, False])
def test_should_show_all_leftovers_of_an_application_without_a_module(settings, tmp_path, monkeypatch, has_state):
    monkeypatch.setattr(leftovers, "load_all", dict)
    state_dir = settings.state_dir
    kinds = (".restores", ".rewinds", ".drills", ".savepoints", ".removed", ".changes")
    places = {state_dir / kind / "gone-app" for kind in kinds}
    places |= {state_dir / "0" / "gone-app", state_dir / "standby-1" / "gone-app"} if has_state else set()
    places |= {temporary_folders(state_dir, name) for name in ("gone-app-0", "gone-app-audit")}
    for place in places:
        (place / "launch").mkdir(parents=True)
    (state_dir / ".tmp" / "gone-app-1").mkdir()
    found = leftovers.all_leftovers(settings)
    assert {left.path for left in found} == places
    assert {(left.kind, left.application_id) for left in found} == {(LeftoverKind.GONE_APPLICATION, "gone-app")}


def test_should_not_show_temporary_files_in_use_when_the_module_of_the_process_is_gone(settings, monkeypatch):
    monkeypatch.setattr(leftovers, "load_all", dict)
    with FolderLock(temporary_folders(settings.state_dir, "gone-app-0") / "launch"):
        assert leftovers.all_leftovers(settings) == []


# --- drawn at random


@dataclass
class Layout:
    """Draws what lies around. `ages` are copies of the state folder of both tasks, the oldest first; the last is level."""

    app: CountingApp
    ages: list[Path]
    chance: random.Random
    summary: list[str] = field(default_factory=list)

    def draw(self) -> None:
        app, chance, state_dir = self.app, self.chance, self.app.settings.state_dir
        shutil.rmtree(state_dir, ignore_errors=True)
        shutil.rmtree(app.settings.var_dir / "instances", ignore_errors=True)
        self.summary = []
        for number in (0, 1, 2):
            for task in range(PARTITIONS):
                if chance.random() < 0.6:
                    self._task(
                        folder_of_instance(app, number) / f"0_{task}", len(self.ages) - 1 if number == 1 else None
                    )
        for _ in range(chance.randrange(4)):
            self._beside()
        if chance.random() < 0.4:
            self._restore()
        if chance.random() < 0.4:
            folder = state_dir / chance.choice((RESETS_FOLDER, ".rescales", ".changes")) / app.name / "old" / "0_0"
            folder.mkdir(parents=True)
        if chance.random() < 0.3:
            (state_dir / REWINDS_FOLDER / app.name / new_id() / "built" / "0_1").mkdir(parents=True)
        self._hold()

    def _task(self, folder: Path, age: int | None) -> None:
        """One that committed last is whole, but for what its disk has lost."""
        chance = self.chance
        age = chance.randrange(len(self.ages)) if age is None else age
        shutil.copytree(self.ages[age] / folder.name, folder)
        self.summary.append(f"{folder.parent.parent.name}/{folder.name} of age {age}")
        for path in sorted((folder / STORES_FOLDER).iterdir()):
            if chance.random() < 0.15:
                shutil.rmtree(path)
                self.summary.append(f"lost {path}")
            elif chance.random() < 0.1:
                (path / "CURRENT").write_text("no database")
                self.summary.append(f"unreadable {path}")

    def _beside(self) -> None:
        app, chance = self.app, self.chance
        holder = folder_of_instance(app, chance.randrange(3))
        name = chance.choice(("n.corrupt-1", "seen.corrupt-2", "n.restoring", "0_9", "5_0"))
        if "." in name:
            target = holder / f"0_{chance.randrange(PARTITIONS)}" / STORES_FOLDER / name
            source = chance.choice(self.ages) / "0_0" / STORES_FOLDER / "n"
        else:
            target, source = holder / name, chance.choice(self.ages) / "0_0"
        if not target.exists():
            shutil.copytree(source, target)
            self.summary.append(f"beside {target}")

    def _restore(self) -> None:
        """A real one, killed somewhere or not at all."""
        point = self.chance.choice(("none", "restore-whole", "restore-built", "swap-between", "swap-one"))
        self.summary.append(f"restore to {point}")
        try:
            restored(self.app, crash_at(point), self.chance.choice((None, SourceOfState.CHANGELOG)))
        except (Crash, StartRefused) as error:
            self.summary.append(repr(error)[:80])

    def _hold(self) -> None:
        app, kind = self.app, self.chance.choice(("none", "none", "killed", "case over"))
        if kind == "killed":
            take_hold(app.settings.var_dir, app.name, Hold(DEAD.name, DEAD.command, 5, process=DEAD))
        elif kind == "case over":
            take_hold(app.settings.var_dir, app.name, Hold(new_id(), "why", 5))
            report = case_path(app.settings.var_dir, app.name, read_hold(app.settings.var_dir, app.name).by)
            report.mkdir(parents=True)
            (report / "report.json").write_text("{}")
        self.summary.append(f"hold {kind}")


def restore_plan(app) -> object:
    """What a restore would do, wherever its copies lie; a refusal's words."""
    try:
        made = make_plan(context_of(app).evidence, new_id(), None)
    except StartRefused as error:
        return str(error)
    return [(s.task, s.store, s.source, s.from_offset, s.end_offset) for s in made.stores], made.committed


def start_plans(app, number: int) -> dict[TaskId, set[object]]:
    """How an instance would start each task: from its own folder, or from any that it may adopt, as the disk lists them."""
    context, plans = context_of(app), {}
    for task, found in context.evidence.read().items():
        own = folder_of_instance(app, number) / str(task)
        peers = [path.parent for path in app.settings.state_dir.glob(f"*/{app.name}/{task}/{STORES_FOLDER}")]
        for folder in [own] if (own / STORES_FOLDER).exists() else peers or [own]:
            copies = {
                store: [
                    copy
                    for copy in held
                    if copy.kind is not SourceOfState.LOCAL or Path(copy.location).is_relative_to(folder)
                ]
                for store, held in found.copies.items()
            }
            plan = plan_start(context.evidence.witnesses.evidence(found.facts, copies))
            summary = (
                tuple(
                    (store, candidate.kind, candidate.from_offset, candidate.end_offset)
                    for store, candidate in sorted(plan.stores.items())
                )
                if isinstance(plan, Resume)
                else str(plan).replace(str(folder), "")
            )
            plans.setdefault(task, set()).add(summary)
    return plans


def furthest(app) -> dict[tuple[str, str], int]:
    """The newest batch that any folder of an instance holds, by task of the topology and store."""
    batches: dict[tuple[str, str], int] = {}
    for path in app.settings.state_dir.glob(f"[0-9]/{app.name}/0_[01]/{STORES_FOLDER}/*"):
        if path.name.startswith("seen.corrupt-"):
            batches[path.parent.parent.name, str(path)] = 0
        if path.name not in ("n", "seen"):
            continue
        try:
            checkpoint = read_store_checkpoint(path)
        except Exception:
            continue
        if checkpoint is not None:
            key = (path.parent.parent.name, path.name)
            batches[key] = max(batches.get(key, -1), checkpoint.batch)
    return batches


def replaced(app) -> set[str]:
    root = app.settings.state_dir / ".restores" / app.name
    return {str(path) for path in root.glob("*/previous/*/*/rocksdb/*")}


@pytest.mark.parametrize("purged", [False, True], ids=["whole changelog", "purged changelog"])
def test_should_not_affect_any_start_or_restore_whatever_it_removes(settings, admin, unique, purged):
    app = CountingApp(settings, admin, unique("drawn"), topology=with_unlogged_store, source=SeenTwice)
    ages = []
    for age in range(3):
        app.feed(200)
        app.run(number=1)
        ages.append(settings.state_dir.with_name(f"age-{age}"))
        shutil.copytree(folder_of_instance(app, 1), ages[-1])
    if purged:
        purge(admin, settings, {TopicPartition(f"{app.name}-n-changelog", 0): 5})
    seed = random.randrange(10**9)
    removed = 0
    for number in range(12):
        layout = Layout(app, ages, random.Random(seed + number))
        layout.draw()
        summary = f"draw {seed + number}: {'; '.join(layout.summary)}"
        before = (restore_plan(app), start_plans(app, 1), furthest(app), replaced(app))
        previous = layout.chance.random() < 0.3
        made = clean(app, previous=previous)
        removed += len(made.removed)
        assert restore_plan(app) == before[0], summary
        after = start_plans(app, 1)
        for task, plans in after.items():
            assert plans <= before[1][task], f"task {task} of the owner: {summary}"
            own = folder_of_instance(app, 1) / str(task) / STORES_FOLDER
            assert not own.exists() or plans == before[1][task], summary
        assert furthest(app) == before[2], summary
        assert previous or replaced(app) == before[3], summary
        assert clean(app, previous=previous).judged == (), f"a second run finds nothing to do: {summary}"
        held = read_hold(settings.var_dir, app.name)
        assert held is None or unfinished(settings.state_dir, app.name), summary
    assert removed > 0
    if not purged:
        shutil.rmtree(settings.state_dir)
        shutil.copytree(ages[-1], folder_of_instance(app, 1))
        shutil.copytree(ages[0], folder_of_instance(app, 0))
        clean(app)
        app.feed(200)
        app.run(number=0)


def test_should_remove_nothing_when_a_process_holds_the_folder(app):
    """Another process holds the lock of instance 1's folder, as a running instance does."""
    code = (
        "import sys; from pathlib import Path; from tidemark.folder_lock import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder_of_instance(app, 1))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PYTHONPATH": "include"},
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == b"held\n"
        made = show(app)
        assert made.removed == []
        assert all("instance 1 runs" in each.why for each in made.judged)
        assert clean(app).judged == ()
    finally:
        holder.kill()
        holder.communicate()
    FolderLock(folder_of_instance(app, 1)).release()
    assert app.store_folder(0).exists()
