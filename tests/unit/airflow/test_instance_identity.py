"""Which instances are alive: process ids, machines, torn files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tidemark.processes import Identity, Place
from tidemark.supervision.instance_files import (
    InstanceFiles,
    InstanceKey,
    LaunchRecord,
    known_instances,
    known_standbys,
    write_json,
)
from tidemark.supervision.launch import find_live
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.outage_file import outage_path
from tidemark.supervision.run_file import RunView, run_file_path, standby_file_path


def record(**changes: object) -> LaunchRecord:
    me = Identity.own()
    made = LaunchRecord("l1", me.pid, me.started_after_boot_s, me.pid, "log", 0, 0.0, Place.here())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def files_in(folder: Path) -> InstanceFiles:
    files = InstanceFiles(folder, InstanceKey("app", 0))
    files.make_folders()
    return files


def test_should_look_for_the_run_file_where_an_instance_writes_it(tmp_path: Path) -> None:
    assert files_in(tmp_path).run == run_file_path(tmp_path, "app", 0)


def test_should_keep_the_files_of_a_standby_apart_from_those_of_the_instance_with_its_number(tmp_path: Path) -> None:
    instance, standby = files_in(tmp_path), InstanceFiles(tmp_path, InstanceKey("app", 0, is_standby=True))
    assert standby.run == standby_file_path(tmp_path, "app", 0)
    assert instance.outage == outage_path(tmp_path, "app", 0)
    paths = ("run", "launch", "exit", "watcher", "standstill", "outage", "lock", "log")
    assert not {getattr(instance, name) for name in paths} & {getattr(standby, name) for name in paths}
    standby.make_folders()
    for files in (instance, standby):
        files.launch.write_text("{}")
    assert known_instances(tmp_path, "app") == [instance]
    assert known_standbys(tmp_path, "app") == [standby]


def test_should_read_back_the_launch_record_it_wrote_and_refuse_anything_else(tmp_path: Path) -> None:
    assert LaunchRecord.from_json(record().as_json()) == record()
    for not_one in (None, [], {}, {"pid": 1}, {**record().as_json(), "place": 3}, {**record().as_json(), "new": 1}):
        assert LaunchRecord.from_json(not_one) is None


def test_should_ignore_torn_files(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for path in (files.run, files.launch, files.exit):
        path.write_text('{"pid": 1')
    assert RunView.read(files.run) is None
    assert observe(files).liveness is Liveness.GONE


def test_should_treat_every_process_as_ended_after_the_machine_was_restarted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write_json(files.launch, record(place=dataclasses.replace(Place.here(), boot_id="before")).as_json())
    assert observe(files).liveness is Liveness.GONE


@pytest.mark.parametrize(
    "place",
    [dataclasses.replace(Place.here(), boot_id="before"), Place("other", "boot", "pids")],
    ids=["boot", "machine"],
)
def test_should_find_an_instance_that_was_started_by_hand_despite_the_record_of_an_earlier_launch(
    tmp_path: Path, place: Place
) -> None:
    """This happens after a restart of the machine, or in a container that replaces another one."""
    files, me = files_in(tmp_path), Identity.own()
    write_json(files.launch, record(place=place).as_json())
    write_json(files.run, {**dataclasses.asdict(me), "state": "RUNNING"})
    seen = find_live(files)
    assert seen is not None
    assert (seen.liveness, seen.host, seen.launch_id) == (Liveness.UNSUPERVISED, Place.here().host, None)
    assert seen.run is not None
    assert seen.run.process == me


@pytest.mark.parametrize(
    "place",
    [Place("other", "boot", "pids"), dataclasses.replace(Place.here(), pid_namespace="pids")],
    ids=["machine", "container of the same name"],
)
def test_should_recognise_an_instance_of_another_machine_or_container_by_its_fresh_run_file(
    tmp_path: Path, place: Place
) -> None:
    files = files_in(tmp_path)
    write_json(files.launch, record(place=place).as_json())
    assert observe(files).liveness is Liveness.GONE
    # A process of this machine has the same number, as may be.
    me = Identity.own()
    write_json(files.run, {**dataclasses.asdict(me), "boot_id": "other", "state": "RUNNING"})
    seen = observe(files)
    assert (seen.liveness, seen.host) == (Liveness.ELSEWHERE, place.host)
    os.utime(files.run, (1, 1))
    assert observe(files).liveness is Liveness.GONE


def test_should_consider_nothing_of_an_earlier_boot_alive_however_recent_its_run_file_is(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write_json(files.launch, record(place=dataclasses.replace(Place.here(), boot_id="before")).as_json())
    write_json(files.run, {**dataclasses.asdict(Identity.own()), "boot_id": "before", "state": "RUNNING"})
    assert observe(files).liveness is Liveness.GONE


@pytest.mark.parametrize(
    ("run_file_s", "liveness", "exit_code"),
    [(-1, Liveness.GONE, 30), (0, Liveness.GONE, 30), (1, Liveness.ELSEWHERE, None)],
    ids=["written before", "written at", "written after the end"],
)
def test_should_read_the_exit_code_of_a_launch_whose_processes_cannot_be_seen(
    tmp_path: Path, run_file_s: int, liveness: Liveness, exit_code: int | None
) -> None:
    """A process that writes its run file after that was started by hand."""
    files = files_in(tmp_path)
    write_json(files.launch, record(place=Place("other", "boot", "pids")).as_json())
    write_json(files.run, {**dataclasses.asdict(Identity.own()), "boot_id": "boot", "state": "RUNNING"})
    write_json(files.exit, {"launch_id": "l1", "exit_code": 30})
    ended_s = int(files.exit.stat().st_mtime) - 5
    os.utime(files.exit, (ended_s, ended_s))
    os.utime(files.run, (ended_s + run_file_s, ended_s + run_file_s))
    seen = observe(files)
    assert (seen.liveness, seen.exit_code) == (liveness, exit_code)


def test_should_ignore_the_exit_code_of_an_earlier_launch(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write_json(files.launch, record(started_after_boot_s=1.0, launch_id="l2").as_json())
    write_json(files.exit, {"launch_id": "l1", "exit_code": 20})
    assert observe(files).exit_code is None
    write_json(files.exit, {"launch_id": "l2", "exit_code": 10})
    assert observe(files).exit_code == 10
