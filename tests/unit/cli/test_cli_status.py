"""`tidemark status`: holds and leftovers, read only from the disk while no broker answers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import pytest
from tests.support.overview import write_launch, write_run_file
from typer.testing import CliRunner

import topologies
from tidemark.cli.main import build
from tidemark.folder_lock import FolderLock
from tidemark.names import TaskId
from tidemark.operations.change.upgrade import CHANGES_FOLDER
from tidemark.operations.leftovers import REMOVED_FOLDER
from tidemark.operations.rewind.rewind import REWINDS_FOLDER
from tidemark.operations.workspace import Move, RestoreState, Workspace, WorkspaceProgress, new_id
from tidemark.processes import Identity, Place
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.settings import Settings
from tidemark.stores.directory import folder_of
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.supervision import watch_claim
from tidemark.supervision.hold import Hold, HoldingProcess, hold_path, release_hold, take_hold
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage

APP = "looked-at"
_MODULE = f"""
from tidemark.topology.builder import Topology
def topology():
    made = Topology({APP!r})
    made.stream("{APP}-in", schema="id STRING").group_by_key().count(name="n", store="n").to("{APP}-out")
    return made
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """One topology is deployed, no broker answers."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "looked_at.py").write_text(_MODULE)
    monkeypatch.setattr(topologies, "__path__", [str(modules)])
    monkeypatch.delitem(sys.modules, "topologies.looked_at", raising=False)
    made = Settings.load(
        # No process listens on this port, nor will one.
        bootstrap_servers="127.0.0.1:1",
        broker_timeout_ms=100,
        var_dir=tmp_path / "var",
        state_dir=tmp_path / "state",
    )
    for name, value in made.as_environment().items():
        monkeypatch.setenv(name, value)
    return made


def status(as_json=True):
    said = CliRunner().invoke(build(), ["status", *(["--json"] if as_json else [])])
    assert said.exit_code == 1, "no stack is recorded"
    return json.loads(said.stdout) if as_json else said.stdout


def left(settings):
    return {
        (each["kind"], each["path"].removeprefix(f"{settings.state_dir}/"))
        for each in status()["leftovers"]
        if each["application"] == APP
    }


def holder(settings, name: object):
    return settings.state_dir / str(name) / APP


def store(folder, batch: int) -> None:
    """A store of task 0_0, as after a batch."""
    made = RocksStore(folder_of(folder, TaskId(0, 0), "n"), write_buffer_bytes=1 << 20)
    made.put_many([Writes(0, [b"k"], [b"v" * 100])], StoreCheckpoint(APP, "1", "n", "1:", batch, 1, {}, 1, 1), None)
    made.close()


def restore(settings, state: RestoreState, **summary) -> Workspace:
    made = Workspace(settings.state_dir, APP, new_id())
    made.create(RestorePlan(made.folder.name, APP, "1", 1, None, (), (), {}, 0))
    made.write(WorkspaceProgress(state, **summary))
    return made


def test_should_show_nothing_when_nothing_is_left(settings):
    assert status()["leftovers"] == []
    store(holder(settings, 0), 3)
    (holder(settings, 1) / "0_1").mkdir(parents=True)
    assert status()["leftovers"] == []
    assert "leftovers: " not in status(as_json=False)


def test_should_show_size_and_age_of_unused_stores_and_tasks(settings):
    for number, batch in ((0, 3), (1, 9), (2, 3)):
        store(holder(settings, number), batch)
    beside = folder_of(holder(settings, 1), TaskId(0, 0), "n")
    for name in ("n.corrupt-17", "n.restoring"):
        beside.with_name(name).mkdir()
        (beside.with_name(name) / "file").write_text("x" * 1000)
    (folder_of(holder(settings, "standby-0"), TaskId(4, 0), "n")).mkdir(parents=True)
    base = {
        ("stale task folder", f"0/{APP}/0_0"),
        ("stale task folder", f"2/{APP}/0_0"),
        ("corrupt store", f"1/{APP}/0_0/rocksdb/n.corrupt-17"),
        ("folder of a task that is gone", f"standby-0/{APP}/4_0"),
    }
    building = ("half-built store", f"1/{APP}/0_0/rocksdb/n.restoring")
    os.utime(beside.with_name("n.corrupt-17"), (1_700_000_000,) * 2)
    assert left(settings) == {*base, building}
    corrupt = next(each for each in status()["leftovers"] if each["kind"] == "corrupt store")
    assert (corrupt["bytes"], corrupt["since_ms"]) == (1000, 1_700_000_000_000)
    shown = status(as_json=False)
    assert "leftovers: " in shown
    assert "instance 1 has continued task 0_0" in shown
    with FolderLock(holder(settings, 1)):
        assert left(settings) == base, "an instance that runs may be building it"


def test_should_not_call_a_copy_stale_when_two_are_equally_far(settings):
    store(holder(settings, 0), 3)
    store(holder(settings, 1), 3)
    assert left(settings) == set()


def test_should_show_leftovers_of_restores_and_changes_but_not_while_one_is_running(settings):
    replaced = f".restores/{APP}"
    done = restore(settings, RestoreState.DONE, moves=(Move("0_0", f"0/{APP}/0_0", "", takes_built=True),))
    kept = restore(settings, RestoreState.DONE)
    previous = kept.previous / "0" / "0_0"
    previous.mkdir(parents=True)
    move = Move("0_0", f"0/{APP}/0_0", str(previous.relative_to(settings.state_dir)), takes_built=True)
    kept.write(WorkspaceProgress(RestoreState.DONE, moves=(move,)))
    left_half = restore(settings, RestoreState.SWAPPING)
    aborted = restore(settings, RestoreState.ABORTED)
    (aborted.built / "0_0").mkdir(parents=True)
    restore(settings, RestoreState.PLANNED)
    (settings.state_dir / CHANGES_FOLDER / APP).mkdir(parents=True)
    rewinds = settings.state_dir / REWINDS_FOLDER / APP
    never, begun, over = new_id(), new_id(), new_id()
    (rewinds / never).mkdir(parents=True)
    for name, state in ((begun, "committing"), (over, "done")):
        (rewinds / name / "previous" / "0" / "0_0").mkdir(parents=True)
        (rewinds / name / "rewind.json").write_text(json.dumps({"state": state}))
    drill = settings.state_dir / ".drills" / APP / new_id()
    drill.mkdir(parents=True)
    (settings.state_dir / REMOVED_FOLDER / APP / new_id()).mkdir(parents=True)
    found = {
        ("replaced state", f"{replaced}/{kept.folder.name}/previous"),
        ("replaced state", f".rewinds/{APP}/{over}/previous"),
    }
    half_done = {
        ("unfinished restore", f"{replaced}/{left_half.folder.name}"),
        ("built by a command that ended", f"{replaced}/{aborted.folder.name}/built"),
        ("built by a command that ended", f"{CHANGES_FOLDER}/{APP}"),
        ("built by a command that ended", f".rewinds/{APP}/{never}"),
        ("built by a command that ended", f".drills/{APP}/{drill.name}"),
        ("unfinished restore", f".rewinds/{APP}/{begun}"),
    }
    seen = left(settings)
    assert found | half_done < seen
    assert {kind for kind, _ in seen - found - half_done} == {"taken out by `tidemark clean run`"}
    assert done.folder.name not in str(seen)
    with left_half.lock():
        assert ("unfinished restore", f"{replaced}/{left_half.folder.name}") not in left(settings)
    take_hold(settings.var_dir, APP, Hold(left_half.folder.name, "a case", 5))
    assert left(settings) == found


def test_should_show_the_links_of_a_savepoint_unless_it_is_being_taken(settings):
    folder = settings.state_dir / ".savepoints" / APP / "20270101T000000-aaaaaa"
    (folder / "0_0" / "n").mkdir(parents=True)
    (folder / "0_0" / "n" / "000008.sst").write_text("x" * 1000)
    assert left(settings) == {("built by a command that ended", str(folder.relative_to(settings.state_dir)))}
    assert [(each["bytes"], each["why"]) for each in status()["leftovers"]] == [
        (1000, "a `tidemark savepoint take` was killed")
    ]
    with FolderLock(settings.var_dir / "savepoint-commands" / APP):
        assert left(settings) == set()


def test_should_show_every_hold_and_which_is_stale(settings):
    own = HoldingProcess.own()
    take_hold(settings.var_dir, APP, Hold(own.name, "tidemark restore run x", 5, process=own))
    assert status()["holds"] == [
        {
            "application": APP,
            "by": own.name,
            "reason": "tidemark restore run x",
            "since_ms": 5,
            "stale": None,
            "remedy": None,
        }
    ]
    assert own.name in status(as_json=False)
    release_hold(settings.var_dir, APP, own.name, own)
    settings.state_dir.mkdir()
    dead = replace(own, pid=2**22 + 1)
    again = "tidemark restore run NAME --resume 20261122T031500000000Z"
    take_hold(settings.var_dir, APP, Hold(dead.name, "tidemark restore run x", 5, process=dead, continued_by=again))
    assert "was killed" in status()["holds"][0]["stale"]
    assert [(each["kind"], each["path"]) for each in status()["leftovers"]] == [
        ("stale hold", str(hold_path(settings.var_dir, APP)))
    ]
    shown = status(as_json=False)
    assert "holds: nothing is launched" in shown
    assert "stale" in shown.split("leftovers: ")[0]
    assert status()["holds"][0]["remedy"].startswith(f"run `{again}`; if nothing is left unfinished, ")
    assert "--resume" in shown.split("leftovers: ")[0]


def test_should_show_applications_without_a_topology_unless_some_topology_does_not_load(settings, tmp_path):
    store(settings.state_dir / "0" / "forgotten", 3)
    shown = status()["leftovers"]
    assert [(each["application"], each["kind"]) for each in shown] == [
        ("forgotten", "folder of an application that is gone")
    ]
    (tmp_path / "modules" / "broken.py").write_text("def topology():\n    raise ValueError\n")
    assert status()["leftovers"] == [], "it may be that one's"


def test_should_say_which_instance_waits_for_brokers(settings):
    path = outage_path(settings.var_dir, APP, 1)
    write_outage(path, RecordedOutage(0, "no broker leads pulse[0]", ()))
    assert status()["outages"] == [{"instance": f"{APP}-1", "since_ms": 0, "why": "no broker leads pulse[0]"}]
    assert "no broker leads pulse[0]" in status(as_json=False)
    path.unlink()
    assert status()["outages"] == []


def test_should_name_an_instance_that_airflow_launched_and_does_not_watch(settings):
    write_run_file(settings.var_dir, APP)
    write_launch(settings.var_dir, APP, 0, Place.here(), Identity.own())
    assert [each["watched"] for each in status()["instances"]] == [False]
    said = "looked-at-0 runs, but no trigger of Airflow watches it"
    assert said in " ".join(status(as_json=False).split())
    watch_claim.take(InstanceFiles(settings.var_dir, InstanceKey(APP, 0)), "a trigger")
    assert [each["watched"] for each in status()["instances"]] == [True]
    assert said not in " ".join(status(as_json=False).split())
