"""Instances and standbys as their files report them."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from tests.support.overview import write_launch, write_run_file, write_standby_file

from tidemark.overview.instances import read_instances, read_standbys
from tidemark.processes import Identity, Place
from tidemark.supervision.run_file import LOST, run_file_path, standby_file_path

APP = "app"
DEAD = {"pid": 1 << 22, "start_time": 1.0}


def only(var_dir):
    (found,) = read_instances(var_dir, APP)
    return found


def test_should_read_what_a_running_instance_reports(tmp_path):
    write_run_file(
        tmp_path,
        APP,
        records_per_second=12.5,
        last_commit_ms=7,
        last_commit_seconds=0.5,
        partitions=["a[0]"],
        generation=2,
    )
    found = only(tmp_path)
    assert (found.state, found.is_alive, found.records_per_second, found.partitions) == (
        "RUNNING",
        True,
        12.5,
        ("a[0]",),
    )
    assert (found.last_commit_ms, found.last_commit_s, found.generation) == (7, 0.5, 2)


@pytest.mark.parametrize(
    ("written", "state"), [("RUNNING", LOST), ("RESTORING", LOST), ("NOT_RUNNING", "NOT_RUNNING"), ("ERROR", "ERROR")]
)
def test_an_instance_whose_process_is_gone_should_be_lost_unless_it_recorded_its_end(tmp_path, written, state):
    write_run_file(tmp_path, APP, state=written, records_per_second=99.0, partitions=["a[0]"], **DEAD)
    found = only(tmp_path)
    assert (found.state, found.is_alive) == (state, False)
    assert (found.records_per_second, found.partitions) == (None, ())


@pytest.mark.parametrize(("age_s", "is_alive"), [(0, True), (61, False)])
def test_an_instance_on_another_machine_should_be_alive_while_it_writes_its_file(tmp_path, age_s, is_alive):
    there = replace(Place.here(), host="elsewhere", boot_id="another")
    write_launch(tmp_path, APP, 0, there, Identity(1 << 22, 1.0))
    write_run_file(tmp_path, APP, **DEAD)
    written = time.time() - age_s
    os.utime(run_file_path(tmp_path, APP, 0), (written, written))
    found = only(tmp_path)
    assert (found.is_alive, found.state) == (is_alive, "RUNNING" if is_alive else LOST)


@pytest.mark.parametrize("before", ["ERROR", "NOT_RUNNING", "RUNNING"])
def test_an_instance_that_is_being_launched_should_not_show_the_end_of_the_one_before(tmp_path, before):
    write_run_file(tmp_path, APP, state=before, topology_version="old", **DEAD)
    write_launch(tmp_path, APP, 0, Place.here(), Identity.own())
    found = only(tmp_path)
    assert (found.state, found.is_alive, found.topology_version) == ("CREATED", True, None)


@pytest.mark.parametrize(
    ("offsets", "done"), [((0, 0, 100), 0.0), ((50, 75, 100), 0.5), ((0, 100, 100), 1.0), ((9, 9, 9), 1.0)]
)
def test_a_restore_should_say_how_much_of_the_changelog_was_read(tmp_path, offsets, done):
    body = {"store": "s", "changelog": "c[0]", "records": 5, "records_per_second": 2, "remaining_s": None}
    body |= dict(zip(("start_offset", "next_offset", "end_offset"), offsets, strict=True))
    write_run_file(tmp_path, APP, state="RESTORING", restoring=body)
    found = only(tmp_path)
    assert found.is_restoring
    assert found.restore is not None
    assert found.restore.done == done


def test_the_files_of_another_application_should_not_be_taken_for_this_one(tmp_path):
    write_run_file(tmp_path, "app-two")
    write_standby_file(tmp_path, "app-two")
    assert read_instances(tmp_path, APP) == []
    assert read_standbys(tmp_path, APP) == []


@pytest.mark.parametrize(("age_s", "is_alive"), [(14, True), (16, False)])
def test_a_standby_on_another_machine_should_be_alive_while_it_writes_its_file(tmp_path, age_s, is_alive):
    write_standby_file(tmp_path, APP, partitions=["0_0", "0_1"], useless_because="nothing was read yet", **DEAD)
    written_s = standby_file_path(tmp_path, APP, 0).stat().st_mtime
    (found,) = read_standbys(tmp_path, APP, written_s + age_s)
    assert (found.name, found.is_alive, found.tasks) == ("standby-0", is_alive, 2)
    assert found.useless_because == "nothing was read yet"
