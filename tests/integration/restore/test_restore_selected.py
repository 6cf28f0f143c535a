"""Restores of one task or one store on a real broker: everything that was not selected keeps its contents."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace

import pytest
from tests.integration.restore.test_restore_run import context_of, items_of, with_unlogged_store
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, CountingSource, Crash, crash_at
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.workspace import RestoreState, Workspace, new_id
from tidemark.recovery.selection import Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import opened
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

STORES = {
    "n": "n",
    "m": "m",
    "seen": Materialized("seen", logging=False),
    "own": Materialized("own", custom="tests.support.custom_store:OwnStore"),
    "light": Materialized("light", in_memory=True),
}
TASKS = [str(TaskId(0, number)) for number in range(PARTITIONS)]
CHANGELOG = SourceOfState.CHANGELOG


class SeenByAll(CountingSource):
    """Each batch for the branch of every store."""

    def next(self, timeout_s):
        batch = super().next(timeout_s)
        return None if batch is None else replace(batch, pipelines=[*batch.pipelines] * len(STORES))


def with_every_kind(name):
    """The same counts in a store of each kind."""
    topology = Topology(name)
    grouped = topology.stream(f"{name}-in", schema="id STRING").group_by_key()
    for store, kept in STORES.items():
        counted = grouped.count(name="n", store=kept)
        if store == "n":
            counted.to(f"{name}-out")
    return topology


@pytest.fixture
def app(settings, admin, unique):
    """Two tasks of five stores, everything committed by instance 0, nothing running."""
    made = CountingApp(settings, admin, unique("selected"), topology=with_every_kind, source=SeenByAll)
    made.feed(600, keys=100)
    made.run()
    return made


def folder_of(app, task, store, holder="0"):
    return app.settings.state_dir / holder / app.name / task / "rocksdb" / store


def contents(app, holder="0"):
    """What each store of each task holds on disk, with the witness of its very folder."""
    found = {}
    for task in TASKS:
        for folder in sorted((app.settings.state_dir / holder / app.name / task / "rocksdb").glob("*")):
            witness = folder.parent.parent / f"{folder.name}.is"
            found[task, folder.name] = (folder.stat().st_ino, sorted(items_of(folder)), witness.exists())
    return found


def without(found, *names):
    return {name: held for name, held in found.items() if name not in names}


def damage(app, task, store="n", holder="0"):
    """Another value than the changelog's; the marker stays."""
    with opened(folder_of(app, task, store, holder)) as held:
        key, value = next(held.items(WHOLE))
        held.put_many([Writes(WHOLE, [key], [value[:-1] + bytes([value[-1] ^ 1])])], held.checkpoint, None)
    return key


def begin(app, probe=NO_PROBE, *, tasks=(), stores=(), asked=CHANGELOG):
    app.leave_group()
    context = context_of(app)
    made = make_plan(context.evidence, new_id(), asked, Selection.of(tasks, stores))
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    workspace.create(made)
    said = []
    return made, workspace, RestoreRun(context, workspace, LoggingRestoreListener(), probe, said.append), said


def counts_right(app):
    """Whether another run of the application makes every store hold what is expected: all five hold the same counts."""
    app.feed(200, keys=100)
    app.run()
    found = contents(app)
    values = [
        sorted((key, value) for task in TASKS for key, value in found[task, store][1])
        for store in ("n", "m", "seen", "own")
    ]
    return all(len(held) == len(app.expected) and held == values[0] for held in values)


@pytest.mark.parametrize("point", [None, "restore-built", "swap-between", "swap-one"])
def test_should_rebuild_one_store_of_one_task_and_touch_nothing_else(app, point):
    right = contents(app)
    damage(app, "0_1")
    before = contents(app)
    made, _, run, said = begin(app, crash_at(point) if point else NO_PROBE, tasks=["0_1"], stores=["n"])
    assert [(s.task, s.store) for s in made.stores] == [("0_1", "n")]
    assert made.not_rebuilt == ()
    if point:
        with pytest.raises(Crash):
            run.run()
        assert without(contents(app), ("0_1", "n")) == without(before, ("0_1", "n"))
        run = replace(run, probe=NO_PROBE)
    assert run.run().state is RestoreState.DONE
    after = contents(app)
    assert without(after, ("0_1", "n")) == without(before, ("0_1", "n"))
    assert after["0_1", "n"][1] == right["0_1", "n"][1] != before["0_1", "n"][1]
    assert run.roll_back().state is RestoreState.ROLLED_BACK
    assert contents(app) == before
    assert not [line for line in said if "begins empty" in line]


@pytest.mark.parametrize("point", ["swap-between", "swap-one"])
def test_should_keep_every_other_store_when_an_instance_ran_during_the_swap(app, point):
    _, _, run, _ = begin(app, crash_at(point), tasks=[random.choice(TASKS)], stores=["n"])
    with pytest.raises(Crash):
        run.run()
    app.feed(200, keys=100)
    # Instance 1 has no folder: it takes over what instance 0 has left.
    app.run(number=random.choice([0, 1]))
    assert replace(run, probe=NO_PROBE).run().state is RestoreState.DONE
    for number in (1, 0):
        app.feed(100, keys=100)
        app.run(number=number)
        found = contents(app, str(number))
        for store in ("n", "m", "seen", "own"):
            held = [item for task in TASKS for item in found.get((task, store), (0, [], False))[1]]
            assert len(held) == len(app.expected), (number, store)
    assert counts_right(app)


def test_should_replace_a_store_in_every_folder_that_holds_its_task(app):
    """Instance 1 took the tasks over and committed last; the folders of instance 0 and of a standby are stale."""
    state_dir = app.settings.state_dir
    shutil.copytree(state_dir / "0", state_dir.with_name("stale"))
    app.feed(300, keys=100)
    app.run(number=1)
    for holder in ("0", "standby-0"):
        shutil.rmtree(state_dir / holder, ignore_errors=True)
        shutil.copytree(state_dir.with_name("stale"), state_dir / holder)
    before = {holder: contents(app, holder) for holder in ("0", "1", "standby-0")}
    damage(app, "0_0", holder="1")
    _, _, run, _ = begin(app, tasks=["0_0"], stores=["n"])
    run.run()
    assert contents(app, "1")["0_0", "n"][1] == before["1"]["0_0", "n"][1]
    for holder, found in before.items():
        assert without(contents(app, holder), ("0_0", "n")) == without(found, ("0_0", "n"))
        assert (("0_0", "n") in contents(app, holder)) == (holder == "1")
    run.roll_back()
    for holder in ("0", "standby-0"):
        assert contents(app, holder) == before[holder]
    assert without(contents(app, "1"), ("0_0", "n")) == without(before["1"], ("0_0", "n"))


def test_should_restore_one_task_as_a_whole_and_no_other(app):
    before = contents(app)
    damage(app, "0_1", "m")
    witness = app.state / "0_1" / "witness"
    witness.touch()
    made, _, run, _ = begin(app, tasks=["0_1"])
    assert [(s.task, s.store) for s in made.stores] == [("0_1", "n"), ("0_1", "m")]
    assert [line.split(":")[0] for line in made.not_rebuilt] == ["seen", "own", "light"]
    run.run()
    after = contents(app)
    assert not witness.exists()
    assert {name: held for name, held in after.items() if name[0] == "0_0"} == {
        name: held for name, held in before.items() if name[0] == "0_0"
    }
    for store in ("n", "m", "seen"):
        assert after["0_1", store][1] == before["0_1", store][1]
    assert counts_right(app)


def test_should_restore_one_store_of_all_tasks(app):
    made, _, run, _ = begin(app, stores=["m"])
    assert [(s.task, s.store) for s in made.stores] == [("0_0", "m"), ("0_1", "m")]
    before = contents(app)
    run.run()
    left = {name: held for name, held in before.items() if name[1] != "m"}
    assert {name: held for name, held in contents(app).items() if name[1] != "m"} == left
    assert counts_right(app)


def test_should_take_each_store_of_a_task_from_another_source(app):
    """A store without a local copy does not prevent another from being restored from its own."""
    shutil.rmtree(folder_of(app, "0_1", "m"))
    made, _, run, _ = begin(app, asked=None)
    sources = {(s.task, s.store): s.source for s in made.stores}
    assert sources["0_1", "n"] is SourceOfState.LOCAL
    assert sources["0_1", "m"] is CHANGELOG
    assert run.run().state is RestoreState.DONE
    assert counts_right(app)


def test_should_need_no_source_for_a_store_that_was_not_selected(app):
    shutil.rmtree(folder_of(app, "0_1", "m"))
    with pytest.raises(StartRefused, match="there is no local copy"):
        begin(app, asked=SourceOfState.LOCAL)
    made, _, run, _ = begin(app, stores=["n"], asked=SourceOfState.LOCAL)
    assert {s.source for s in made.stores} == {SourceOfState.LOCAL}
    assert run.run().state is RestoreState.DONE


@pytest.mark.parametrize(
    ("tasks", "stores", "said"),
    [
        (["0_2"], [], "has no task 0_2; its tasks are 0_0, 0_1"),
        (["0_0", "x"], [], "has no task x; its tasks are"),
        ([], ["nn"], "has no store nn; the stores that a restore rebuilds are m, n"),
        ([], ["seen"], "cannot restore store seen: it is not logged; the stores"),
        (["0_0"], ["n", "own"], "cannot restore store own: it is custom"),
        ([], ["light"], "it is in memory"),
    ],
)
def test_should_refuse_an_unknown_name_and_list_the_known_ones(app, tasks, stores, said):
    with pytest.raises(StartRefused, match=said):
        make_plan(context_of(app).evidence, new_id(), None, Selection.of(tasks, stores))


def test_should_refuse_an_empty_plan(app):
    context = context_of(app)
    made = replace(make_plan(context.evidence, new_id(), None), stores=())
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    workspace.create(made)
    with pytest.raises(StartRefused, match="there is nothing that a restore rebuilds in plan"):
        RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()


def test_should_accept_tasks_and_stores_by_command(settings, admin, unique, tmp_path, monkeypatch):
    app = CountingApp(settings, admin, unique("counting"))
    app.feed(200, keys=50)
    app.run()
    app.for_commands(tmp_path, monkeypatch)

    def tidemark(*options, code=0):
        done = CliRunner().invoke(build(), ["restore", *options])
        assert done.exit_code == code, done.output
        return done

    kept = tmp_path / "plan.json"
    only = ("--task", "0_1", "--store", "n", "--store", "n")
    summary = json.loads(tidemark("plan", "made_counting", *only, "--json", "--out", str(kept)).stdout)
    assert summary["selection"] == {"tasks": ["0_1"], "stores": ["n"]}
    assert [(s["task"], s["store"]) for s in summary["stores"]] == [("0_1", "n")]
    shown = " ".join(tidemark("plan", "made_counting", *only).stdout.split())
    assert "1 store folders (0_1/n); every other store of these tasks keeps what it holds, and no other task" in shown
    assert "1 task folders (0_0); no other task" in " ".join(
        tidemark("plan", "made_counting", "--task", "0_0").stdout.split()
    )
    assert "already states what" in tidemark("run", "made_counting", *only, "--plan", str(kept), code=2).output
    left = (app.state / "0_1" / "witness", app.state / "0_0" / "witness")
    for witness in left:
        witness.touch()
    inode = app.store_folder(0).stat().st_ino
    tidemark("run", "made_counting", "--plan", str(kept), "--yes")
    assert all(witness.exists() for witness in left)
    tidemark("run", "made_counting", "--task", "0_1", "--from", "changelog", "--yes")
    assert [witness.exists() for witness in left] == [False, True]
    assert app.store_folder(0).stat().st_ino == inode
    refused = CliRunner().invoke(build(), ["restore", "plan", "made_counting", "--task", "0_7"])
    assert "its tasks are 0_0, 0_1" in str(refused.exception)


def test_should_keep_an_unlogged_store_when_it_is_the_only_other_store(settings, admin, unique):
    """The plan covers everything that a restore builds of the task; stores that were not selected still stay."""

    class SeenTwice(CountingSource):
        def next(self, timeout_s):
            batch = super().next(timeout_s)
            return None if batch is None else replace(batch, pipelines=[*batch.pipelines] * 2)

    app = CountingApp(settings, admin, unique("pair"), topology=with_unlogged_store, source=SeenTwice)
    app.feed(300, keys=60)
    app.run()
    before = contents(app)
    _, _, run, _ = begin(app, stores=["n"])
    run.run()
    seen = {name: held for name, held in before.items() if name[1] == "seen"}
    assert {name: held for name, held in contents(app).items() if name[1] == "seen"} == seen
