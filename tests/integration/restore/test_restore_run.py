"""Restores of a stopped application on a real broker: from each source, killed at each step, refused, rolled back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, CountingSource, Crash, Elsewhere, crash_at
from tests.support.purging import purge
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, PreflightFailed, StartRefused, TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topic_config import DAY_MS
from tidemark.names import TopicPartition
from tidemark.operations.context import OperationContext
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.workspace import RestoreState, Workspace, new_id, unfinished, workspaces
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.local_copies import LocalCopies, read_store_checkpoint
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.verify import scratch_database
from tidemark.stores.layout import ValueLayout
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import RocksStore, opened
from tidemark.tasks.values import value_layouts
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]


ROOT = Path(__file__).resolve().parents[3]
RESTORE_ID = "20261122T031500000000Z"


class Counted(LoggingRestoreListener):
    """Remembers how many records were read."""

    def __init__(self):
        super().__init__()
        self.records = 0

    def on_restore_end(self, progress):
        super().on_restore_end(progress)
        self.records += progress.records


@pytest.fixture
def app(settings, admin, unique):
    """Create a stopped application with two partitions and 200 keys, in which everything is committed."""
    made = CountingApp(settings, admin, unique("counting"))
    made.feed(2000)
    made.run()
    return made


def context_of(app):
    copies = [LocalCopies(app.settings.state_dir, app.name)]
    return OperationContext.of(app.plan, app.settings, copies, wall_clock_ms)


def planned(app, asked=None, name=None):
    app.leave_group()
    context = context_of(app)
    made = make_plan(context.evidence, name or new_id(), asked)
    workspace = Workspace(app.settings.state_dir, app.name, made.restore_id)
    workspace.create(made)
    return context, workspace


def restore(app, asked=None, probe=NO_PROBE, said=None, listener=None):
    context, workspace = planned(app, asked)
    run = RestoreRun(
        context, workspace, listener or LoggingRestoreListener(), probe, (said if said is not None else []).append
    )
    return run.run(), workspace, run


def counts_of(app, folder=None):
    layout: ValueLayout = value_layouts(app.plan.subtopologies[0])["n"]
    found = {}
    for partition in range(PARTITIONS):
        store = RocksStore(folder(partition) if folder else app.store_folder(partition), write_buffer_bytes=1 << 20)
        try:
            items = list(store.items(WHOLE))
        finally:
            store.close()
        decoded = layout.decode([value for _, value in items])
        found |= {key.decode(): int(n) for (key, _), n in zip(items, decoded[decoded.dtype.names[-1]], strict=True)}
    return found


def test_should_plan_from_the_local_store_and_change_nothing(app):
    made = make_plan(context_of(app).evidence, RESTORE_ID, None)
    assert [(s.task, s.store, s.source) for s in made.stores] == [
        ("0_0", "n", SourceOfState.LOCAL), ("0_1", "n", SourceOfState.LOCAL),
    ]  # fmt: skip
    assert workspaces(app.settings.state_dir, app.name) == []


def test_should_plan_while_the_application_runs(app):
    stop, instance = threading.Event(), make_instance(app.plan, app.settings, 0, "counting", NO_PROBE)
    try:
        made = make_plan(context_of(app).evidence, RESTORE_ID, None)
        assert {s.source for s in made.stores} == {SourceOfState.LOCAL}
    finally:
        stop.set()
        instance.close(None)


@pytest.mark.parametrize("asked", [None, SourceOfState.LOCAL, SourceOfState.CHANGELOG])
def test_should_rebuild_and_verify_every_key_and_continue(app, asked):
    done, _, _ = restore(app, asked)
    assert done.state is RestoreState.DONE
    assert sum(verdict.keys for verdict in done.verdicts.values()) == len(app.expected)
    assert counts_of(app) == app.expected
    app.feed(500)
    app.run()
    assert counts_of(app) == app.expected


def test_should_rebuild_a_state_that_is_lost(app):
    shutil.rmtree(app.settings.state_dir)
    listener = Counted()
    done, _, _ = restore(app, listener=listener)
    assert done.state is RestoreState.DONE
    assert counts_of(app) == app.expected
    assert listener.records >= len(app.expected)


def test_should_read_only_the_tail_when_the_local_store_is_behind(app):
    saved = app.settings.state_dir.with_name("saved")
    shutil.copytree(app.settings.state_dir, saved)
    app.feed(300, keys=10)
    app.run()
    shutil.rmtree(app.settings.state_dir)
    saved.rename(app.settings.state_dir)
    listener = Counted()
    restore(app, SourceOfState.LOCAL, listener=listener)
    assert counts_of(app) == app.expected
    assert 0 < listener.records < len(app.expected)


def test_should_not_bring_deleted_keys_back_when_reading_the_tail_takes_longer_than_tombstones_are_kept(app):
    """The machine slept during the restore: a key was deleted after the copy, and its tombstone has been compacted away."""
    saved = app.settings.state_dir.with_name("saved")
    shutil.copytree(app.settings.state_dir, saved)
    app.feed(300, keys=10)
    app.run()
    shutil.rmtree(app.settings.state_dir)
    saved.rename(app.settings.state_dir)
    for partition in range(PARTITIONS):
        store = RocksStore(app.store_folder(partition), write_buffer_bytes=1 << 20)
        _, value = next(store.items(WHOLE))
        store.put_many([Writes(WHOLE, [b"deleted since"], [value])], store.checkpoint, None)
        store.close()
    asleep_ms = [0]

    def sleep(point):
        if point == "restore-tail":
            asleep_ms[0] = DAY_MS

    context = OperationContext.of(
        app.plan,
        app.settings,
        [LocalCopies(app.settings.state_dir, app.name)],
        lambda: wall_clock_ms() + asleep_ms[0],
    )
    made = make_plan(context.evidence, RESTORE_ID, None)
    assert {store.source for store in made.stores} == {SourceOfState.LOCAL}
    workspace = Workspace(app.settings.state_dir, app.name, RESTORE_ID)
    workspace.create(made)
    said = []
    done = RestoreRun(context, workspace, LoggingRestoreListener(), sleep, said.append).run()
    assert done.state is RestoreState.DONE
    assert counts_of(app) == app.expected
    assert any("delete.retention.ms is 1d" in line and "next source of state" in line for line in said)


def test_should_skip_a_damaged_store(app, caplog):
    for table in app.store_folder(0).glob("*.sst"):
        table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])
    (app.store_folder(0) / "CURRENT").write_text("nonsense\n")
    said = []
    restore(app, said=said)
    assert counts_of(app) == app.expected
    assert "cannot open the store" in caplog.text


def test_should_refuse_a_requested_source_that_does_not_exist(app):
    with pytest.raises(StartRefused, match="there is no savepoint copy"):
        planned(app, SourceOfState.SAVEPOINT)


def test_should_stop_when_one_key_differs_name_it_and_keep_the_old_state(app):
    before = counts_of(app)

    def tamper(point):
        if point != "restore-built" or changed:
            return
        for folder in workspace.built.glob("0_0/rocksdb/n"):
            store = RocksStore(folder, write_buffer_bytes=1 << 20)
            key, _ = next(store.items(WHOLE))
            store.put_many([Writes(WHOLE, [key], [b"wrong"])], store.checkpoint, None)
            changed.append(key)
            store.close()

    changed: list[bytes] = []
    # One store after the other, so that only one is built when it is changed.
    app.settings = app.settings.model_copy(update={"restore_threads": 1})
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    run = RestoreRun(context, workspace, LoggingRestoreListener(), tamper, [].append)
    with pytest.raises(StartRefused, match="differs from its changelog in 1 keys") as refused:
        run.run()
    (kept,) = (workspace.folder / "differences").rglob("*.txt")
    assert changed[0].hex() in kept.read_text()
    assert str(kept) in str(refused.value)
    assert changed[0].hex() not in f"{refused.value} {workspace.progress()}"
    assert workspace.progress().state is RestoreState.FAILED
    assert counts_of(app) == before


@pytest.mark.parametrize(
    ("point", "number"),
    [("restore-whole", 1), ("restore-built", 1), ("swap-between", 1), ("swap-one", 1), ("swap-one", PARTITIONS)],
)
def test_should_continue_where_a_crash_left_it(app, point, number):
    passed = []

    def crash(at):
        if at == point:
            passed.append(at)
            if len(passed) == number:
                raise Crash

    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash, [].append).run()
    done = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert done.state is RestoreState.DONE
    assert counts_of(app) == app.expected


def test_should_not_build_again_what_was_verified_before_a_crash(app):
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at("swap-between"), [].append).run()
    listener = Counted()
    RestoreRun(context, workspace, listener, NO_PROBE, [].append).run()
    assert listener.records == 0


def test_should_continue_after_a_crash_in_the_middle_of_a_verification(app):
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at("restore-built"), [].append).run()
    scratch = workspace.built / "0_0" / "rocksdb" / "n.verify"
    scratch.mkdir(parents=True)
    with scratch_database(scratch, app.settings.verify_memory_bytes) as database:
        database.execute("create table log (position bigint)")
    done = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert done.state is RestoreState.DONE
    assert counts_of(app) == app.expected


@pytest.mark.parametrize("point", ["swap-between", "swap-one"])
def test_should_run_an_application_that_was_started_during_a_swap(app, point):
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at(point), [].append).run()
    app.feed(300)
    app.run()
    assert counts_of(app) == app.expected
    RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()
    app.run()
    assert counts_of(app) == app.expected


def test_should_end_an_unfinished_restore_when_a_later_one_has_taken_its_place(app):
    context, earlier = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, earlier, LoggingRestoreListener(), crash_at("restore-built"), [].append).run()
    _, later, _ = restore(app, SourceOfState.CHANGELOG)
    ended = earlier.progress()
    assert ended.state is RestoreState.ABORTED
    assert ended.message == f"superseded by restore {later.folder.name}"
    assert unfinished(app.settings.state_dir, app.name, but=later.folder.name) == []
    with pytest.raises(StartRefused, match="is aborted"):
        RestoreRun(context, earlier, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert counts_of(app) == app.expected


def test_should_work_on_no_other_restore_while_one_has_begun_to_swap(app):
    """The others were planned, prepared or done before."""
    _, _, done = restore(app, SourceOfState.CHANGELOG)
    context, waiting = planned(app, SourceOfState.CHANGELOG)
    _, left = planned(app, SourceOfState.CHANGELOG)
    killed = RestoreRun(context, left, LoggingRestoreListener(), crash_at("swap-between"), [].append)
    with pytest.raises(Crash):
        killed.run()
    run = RestoreRun(context, waiting, LoggingRestoreListener(), NO_PROBE, [].append)
    for work in (run.prepare, run.run, run.swap, done.roll_back):
        with pytest.raises(StartRefused, match=f"restore {left.folder.name} is swapping: finish it with"):
            work()
    assert left.progress().state is RestoreState.SWAPPING
    assert left.previous.exists()
    assert replace(killed, probe=NO_PROBE).roll_back().state is RestoreState.ROLLED_BACK
    assert counts_of(app) == app.expected
    assert run.run().state is RestoreState.DONE


def test_should_begin_no_other_restore_by_command_while_one_has_begun_to_swap(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)
    context, left = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, left, LoggingRestoreListener(), crash_at("swap-between"), [].append).run()
    name = left.folder.name

    def run(*options):
        return CliRunner().invoke(build(), ["restore", "run", "made_counting", "--yes", *options])

    refused = run()
    assert isinstance(refused.exception, StartRefused)
    for command in (f"restore run made_counting --resume {name}", f"restore rollback made_counting {name}"):
        assert f"`tidemark {command}`" in str(refused.exception)
    assert [one.folder for one in workspaces(app.settings.state_dir, app.name)] == [left.folder]
    assert run("--resume", name).exit_code == 0
    assert run().exit_code == 0
    assert counts_of(app) == app.expected


def test_should_build_again_before_the_swap_what_an_instance_has_outdated(app):
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    said = []
    run = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, said.append)
    assert run.prepare().state is RestoreState.SWAPPING
    app.feed(300)
    app.run()
    app.leave_group()
    resumed = replace(run, context=context_of(app), listener=Counted())
    assert resumed.run().state is RestoreState.DONE
    assert resumed.listener.records > 0
    assert "an instance has committed since the state was built" in " ".join(said)
    assert counts_of(app) == app.expected


def test_should_build_again_before_the_swap_what_lacks_a_batch_without_offsets(app):
    """Such as that of a tick."""
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    run = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append)
    run.prepare()
    with opened(workspace.built / "0_0" / "rocksdb" / "n") as store:
        last = store.checkpoint
        store.put_many([], replace(last, batch=last.batch - 1), None)
    resumed = replace(run, listener=Counted())
    assert resumed.run().state is RestoreState.DONE
    assert resumed.listener.records > 0
    assert read_store_checkpoint(app.store_folder(0)).batch == last.batch
    assert counts_of(app) == app.expected


def test_should_not_build_again_before_the_swap_what_is_up_to_date(app):
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    run = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append)
    run.prepare()
    resumed = replace(run, listener=Counted())
    assert resumed.run().state is RestoreState.DONE
    assert resumed.listener.records == 0


def test_should_roll_back_to_the_very_folders_it_replaced(app):
    (app.state / "0_0" / "witness").write_text("old")
    _, _, run = restore(app, SourceOfState.CHANGELOG)
    assert not (app.state / "0_0" / "witness").exists()
    assert run.roll_back().state is RestoreState.ROLLED_BACK
    assert (app.state / "0_0" / "witness").read_text() == "old"
    app.feed(100)
    app.run()
    assert counts_of(app) == app.expected
    with pytest.raises(StartRefused, match="replaced nothing"):
        run.roll_back()


def test_should_replace_the_live_folder_and_every_stale_one(app):
    """Instance 1 took the tasks over and committed last; the folders of instance 0 and of a standby are older."""
    state_dir = app.settings.state_dir
    stale = state_dir.with_name("stale")
    shutil.copytree(state_dir / "0", stale)
    app.feed(300)
    app.run(number=1)
    held = [state_dir / holder / app.name for holder in ("0", "1", "standby-0")]
    for task in ("0_0", "0_1"):
        shutil.copytree(stale / app.name / task, held[0] / task)
        shutil.copytree(stale / app.name / task, held[2] / task)
        (held[1] / task / "witness").write_text("live")
    _, _, run = restore(app, SourceOfState.CHANGELOG)
    for task in ("0_0", "0_1"):
        assert [(holder / task).exists() for holder in held] == [False, True, False]
        assert not (held[1] / task / "witness").exists()
    assert counts_of(app, lambda number: held[1] / f"0_{number}" / "rocksdb" / "n") == app.expected
    run.roll_back()
    for task in ("0_0", "0_1"):
        assert [(holder / task).exists() for holder in held] == [True, True, True]
        assert (held[1] / task / "witness").read_text() == "live"


def test_should_not_touch_a_running_standby(app):
    standby = app.settings.state_dir / "standby-0" / app.name
    shutil.copytree(app.state, standby)
    with FolderLock(standby):
        restore(app, SourceOfState.CHANGELOG)
    assert (standby / "0_0" / "rocksdb" / "n").exists()


def test_should_not_roll_back_the_only_state(app):
    shutil.rmtree(app.settings.state_dir)
    _, workspace, run = restore(app, SourceOfState.CHANGELOG)
    with pytest.raises(StartRefused, match="the only state here"):
        run.roll_back()
    assert workspace.progress().state is RestoreState.DONE
    assert counts_of(app) == app.expected


def test_should_roll_back_replaced_folders_and_keep_those_that_replaced_nothing(app):
    (app.state / "0_0" / "witness").write_text("old")
    shutil.rmtree(app.state / "0_1")
    said = []
    _, workspace, run = restore(app, SourceOfState.CHANGELOG, said=said)
    assert run.roll_back().state is RestoreState.ROLLED_BACK
    assert (app.state / "0_0" / "witness").read_text() == "old"
    assert "no folder of 0_1 was there before: what was put in place stays" in said
    assert counts_of(app) == app.expected
    assert not workspace.set_aside.exists()


@pytest.mark.parametrize("point", ["swap-between", "swap-one"])
def test_should_remember_what_it_moved_when_the_same_plan_file_is_given_again(app, point):
    for task in ("0_0", "0_1"):
        (app.state / task / "witness").write_text("old")
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    made = workspace.plan()
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at(point), [].append).run()
    workspace.create(made)
    run = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append)
    assert run.run().state is RestoreState.DONE
    assert counts_of(app) == app.expected
    run.roll_back()
    assert [(app.state / task / "witness").read_text() for task in ("0_0", "0_1")] == ["old", "old"]


# --- stores that are not logged


class SeenTwice(CountingSource):
    """Each batch for both branches of `with_unlogged_store`."""

    def next(self, timeout_s):
        batch = super().next(timeout_s)
        return None if batch is None else replace(batch, pipelines=[*batch.pipelines, *batch.pipelines])


def with_unlogged_store(name):
    """As `counting`, with the same counts in the store `seen`, which is not logged."""
    topology = Topology(name)
    grouped = topology.stream(f"{name}-in", schema="id STRING").group_by_key()
    grouped.count(name="n", store="n").to(f"{name}-out")
    grouped.count(name="n", store=Materialized("seen", logging=False))
    return topology


def seen(app, task=0):
    """The folder of the store."""
    return app.state / f"0_{task}" / "rocksdb" / "seen"


def items_of(folder):
    with opened(folder) as store:
        return list(store.items(WHOLE))


class Full:
    """A RocksDB checkpoint on a disk that is full."""

    def __init__(self, _store):
        pass

    def create_checkpoint(self, folder):
        raise OSError(f"IO error: No space left on device: While open a file for appending: {folder}")


@pytest.fixture
def remembering(settings, admin, unique):
    """As `app`, of `with_unlogged_store`."""
    made = CountingApp(settings, admin, unique("remembering"), topology=with_unlogged_store, source=SeenTwice)
    made.feed(600)
    made.run()
    return made


def test_should_carry_over_an_unlogged_store_that_is_up_to_date(remembering):
    app, said = remembering, []
    before = [items_of(seen(app, task)) for task in range(PARTITIONS)]
    assert all(before)
    restore(app, SourceOfState.CHANGELOG, said=said)
    assert [items_of(seen(app, task)) for task in range(PARTITIONS)] == before
    assert not [line for line in said if "begins empty" in line]
    app.feed(400)
    app.run()
    assert counts_of(app, lambda number: seen(app, number)) == app.expected


@pytest.mark.parametrize(("point", "ran"), [("swap-between", False), ("swap-one", False), ("swap-one", True)])
def test_should_carry_over_the_last_contents_of_an_unlogged_store_when_a_swap_is_continued(remembering, point, ran):
    """At the first point the folder of 0_0 is moved out and nothing is in its place; at the second the new one is."""
    app, said = remembering, []
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at(point), [].append).run()
    if ran:
        app.feed(400)
        app.run()
        app.leave_group()
    RestoreRun(context_of(app), workspace, LoggingRestoreListener(), NO_PROBE, said.append).run()
    assert not [line for line in said if "begins empty" in line]
    app.feed(100)
    app.run()
    assert counts_of(app, lambda number: seen(app, number)) == app.expected


def test_should_swap_nothing_while_the_disk_has_no_room_to_carry_an_unlogged_store_over(remembering, monkeypatch):
    app, said = remembering, []
    before = [items_of(seen(app, task)) for task in range(PARTITIONS)]
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    run = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, said.append)
    with monkeypatch.context() as full:
        full.setattr("tidemark.stores.rocksdb.Checkpoint", Full)
        with pytest.raises(StartRefused, match=f"No space left on device.*--resume {workspace.folder.name}` continues"):
            run.run()
    assert not workspace.has_moved(workspace.progress().moves)
    assert run.run().state is RestoreState.DONE
    assert not [line for line in said if "begins empty" in line]
    assert [items_of(seen(app, task)) for task in range(PARTITIONS)] == before


@pytest.mark.parametrize("change", [{"batch": 0}, {"source_offsets": {}}])
def test_should_start_an_unlogged_store_empty_when_it_is_not_up_to_date_and_say_so(remembering, change):
    app, said = remembering, []
    with opened(seen(app)) as store:
        store.put_many([], replace(store.checkpoint, **change), None)
    restore(app, SourceOfState.CHANGELOG, said=said)
    assert [line.split(" is not logged")[0] for line in said if "begins empty" in line] == ["store 0_0/seen"]
    assert not seen(app).exists()
    assert items_of(seen(app, 1))


def test_should_abort_and_leave_only_its_record(app):
    before = counts_of(app)

    def ask_to_end(at):
        if at == "restore-whole":
            workspace.abort()

    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(RestoreSuspended):
        RestoreRun(context, workspace, LoggingRestoreListener(), ask_to_end, [].append).run()
    assert workspace.progress().state is RestoreState.ABORTED
    assert not workspace.built.exists()
    assert counts_of(app) == before


def test_should_refuse_while_an_instance_holds_the_folder(app):
    instance = make_instance(app.plan, app.settings, 0, "counting", NO_PROBE)
    try:
        with pytest.raises(TaskLocked, match="pause its DAG"):
            restore(app)
    finally:
        instance.close(None)


def test_should_refuse_while_a_member_runs_on_another_machine(app):
    elsewhere = Elsewhere(app)
    try:
        elsewhere.join_group()
        app.settings = app.settings.model_copy(update={"broker_timeout_ms": 5000, "session_timeout_ms": 1000})
        with pytest.raises(PreflightFailed, match=f"{app.name}-3"):
            restore(app)
    finally:
        elsewhere.leave()


def test_should_plan_run_list_and_roll_back_by_command(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)
    (app.state / "0_0" / "witness").write_text("old")

    def tidemark(command, *options, code=0):
        done = CliRunner().invoke(build(), ["restore", command, "made_counting", *options])
        assert done.exit_code == code, done.output
        return done.stdout

    assert tidemark("status") == "no restore has been run here\n"
    kept = tmp_path / "plan.json"
    summary = json.loads(tidemark("plan", "--from", "changelog", "--json", "--out", str(kept)))
    assert [store["source"] for store in summary["stores"]] == ["changelog", "changelog"]
    assert "rollback" in tidemark("plan")
    tidemark("run", "--plan", str(kept), code=1)  # nobody says yes
    assert json.loads(tidemark("status", "--json")) == []
    done = " ".join(tidemark("run", "--plan", str(kept), "--yes").split())
    assert f"done, ok: {len(app.expected)} keys compared, 0 left out, 0 differ" in done
    (listed,) = json.loads(tidemark("status", "--json"))
    assert listed["verdict"] == "ok"
    assert sum(figures["compared"] for figures in listed["figures"].values()) == len(app.expected)
    assert f" {len(app.expected)} " in tidemark("status")
    assert (listed["id"], listed["state"], listed["verified"]) == (summary["restore_id"], "done", 2)
    assert not (app.state / "0_0" / "witness").exists()
    assert "cannot be aborted" in str(CliRunner().invoke(build(), ["restore", "abort", "made_counting"]).exception)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps(summary | {"restore_id": "../../../elsewhere"}))
    for options in (("run", "made_counting", "--plan", str(elsewhere), "--yes"), ("rollback", "made_counting", "..")):
        refused = CliRunner().invoke(build(), ["restore", *options])
        assert "is not the id of a restore" in str(refused.exception)
    assert "rolled back" in tidemark("rollback")
    assert (app.state / "0_0" / "witness").read_text() == "old"
    assert counts_of(app) == app.expected


def test_should_roll_back_by_command_the_last_restore_that_has_replaced_something(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)
    (app.state / "0_0" / "witness").write_text("old")

    def roll_back():
        return CliRunner().invoke(build(), ["restore", "rollback", "made_counting"])

    _, failed = planned(app, SourceOfState.CHANGELOG)
    failed.finish(failed.progress(), RestoreState.FAILED)
    assert "has replaced anything here" in str(roll_back().exception)
    _, done, _ = restore(app, SourceOfState.CHANGELOG)
    _, left = planned(app, SourceOfState.CHANGELOG)
    left.abort()
    assert roll_back().exit_code == 0
    assert done.progress().state is RestoreState.ROLLED_BACK
    assert (app.state / "0_0" / "witness").read_text() == "old"
    assert f"{done.folder.name} is rolled back: it has replaced nothing" in str(roll_back().exception)


def test_should_give_up_by_command_a_swap_that_has_moved_nothing_only_by_its_id(app, tmp_path, monkeypatch):
    """Else the command, repeated, would undo the restore before it."""
    app.for_commands(tmp_path, monkeypatch)
    (app.state / "0_0" / "witness").write_text("old")
    context, waiting = planned(app, SourceOfState.CHANGELOG)
    _, done, _ = restore(app, SourceOfState.CHANGELOG)
    RestoreRun(context, waiting, LoggingRestoreListener(), NO_PROBE, [].append).prepare()

    def roll_back(*options):
        return CliRunner().invoke(build(), ["restore", "rollback", "made_counting", *options])

    refused = str(roll_back().exception)
    assert f"restore {waiting.folder.name} is swapping and has replaced nothing yet: finish it with" in refused
    assert f"`tidemark restore rollback made_counting {waiting.folder.name}`" in refused
    given_up = roll_back(waiting.folder.name)
    assert f"restore {waiting.folder.name} aborted; the old state is in place" in " ".join(given_up.stdout.split())
    assert waiting.progress().state is RestoreState.ABORTED
    assert not waiting.built.exists()
    assert roll_back().exit_code == 0
    assert done.progress().state is RestoreState.ROLLED_BACK
    assert (app.state / "0_0" / "witness").read_text() == "old"


def test_should_roll_back_by_command_the_restore_that_was_done_last_although_it_was_planned_first(
    app, tmp_path, monkeypatch
):
    app.for_commands(tmp_path, monkeypatch)
    context, first = planned(app, SourceOfState.CHANGELOG)
    restore(app, SourceOfState.CHANGELOG)
    RestoreRun(context, first, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert CliRunner().invoke(build(), ["restore", "rollback", "made_counting"]).exit_code == 0
    assert first.progress().state is RestoreState.ROLLED_BACK


def test_should_not_begin_by_command_where_the_disk_has_no_room(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)
    usage = shutil.disk_usage(app.settings.state_dir)
    free = [1]
    monkeypatch.setattr(
        "tidemark.operations.disk_space.shutil.disk_usage", lambda _folder: usage._replace(free=free[0])
    )

    def run(*options):
        return CliRunner().invoke(build(), ["restore", "run", "made_counting", "--yes", *options])

    refused = run("--from", "changelog")
    assert isinstance(refused.exception, PreflightFailed)
    assert "but 1 are free" in str(refused.exception)
    assert workspaces(app.settings.state_dir, app.name) == []
    # What is built already needs no more room, and neither does a swap.
    context, workspace = planned(app, SourceOfState.CHANGELOG)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at("restore-built"), [].append).run()
    assert isinstance(run("--resume", workspace.folder.name).exception, PreflightFailed)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at("swap-between"), [].append).run()
    assert run("--resume", workspace.folder.name).exit_code == 0
    free[0] = usage.free
    assert run("--from", "changelog").exit_code == 0
    assert counts_of(app) == app.expected


def test_should_say_that_nothing_could_be_compared_after_a_purge(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)
    context = context_of(app)
    places = [TopicPartition(f"{app.name}-n-changelog", number) for number in range(PARTITIONS)]
    purge(app.admin, app.settings, context.clients.ends.of(places))
    done = CliRunner().invoke(build(), ["restore", "run", "made_counting", "--from", "local", "--yes"])
    assert done.exit_code == ExitCode.RETRY, done.output
    said = " ".join(done.stdout.split())
    assert f"done, not enough evidence: 0 keys compared, {len(app.expected)} left out, 0 differ" in said
    assert counts_of(app) == app.expected
    shown = CliRunner().invoke(build(), ["restore", "status", "made_counting", "--json"])
    (listed,) = json.loads(shown.stdout)
    assert (listed["verdict"], {f["compared"] for f in listed["figures"].values()}) == ("not enough evidence", {0})


_ON_A_FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
sys.argv = ["tidemark", "restore", "run", "made_counting", "--from", "changelog", "--yes"]
from tidemark.cli.main import run
run()
"""


def test_should_fail_in_one_line_and_keep_the_old_state_when_the_disk_is_full(app, tmp_path):
    """A limit on file sizes simulates the full disk: RocksDB's writes fail in the same way."""
    app.feed(6000, keys=6000)
    app.run()
    app.write_module(tmp_path)
    environment = {
        **os.environ, **app.settings.as_environment(),
        "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", "TIDEMARK_TOPOLOGY_PATH": str(tmp_path),
    }  # fmt: skip
    # A JVM tells of it.
    del environment["JAVA_TOOL_OPTIONS"]
    ended = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 30, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "the old state is in place" in ended.stderr
    (workspace,) = workspaces(app.settings.state_dir, app.name)
    assert workspace.progress().state is RestoreState.FAILED
    assert not workspace.built.exists()
    assert counts_of(app) == app.expected
