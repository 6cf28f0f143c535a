"""Instances and standbys as their files report them, for all commands and pages."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from tests.support.overview import write_launch, write_run_file, write_standby_file

from tidemark.processes import Identity, Place
from tidemark.supervision import watch_claim
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, write_json
from tidemark.supervision.local_instances import local_instances, read_instances, read_standbys
from tidemark.supervision.run_file import INSTANCES_FOLDER, LOST, STANDBYS_FOLDER, run_file_path, standby_file_path
from tidemark.supervision.stop import record_pause

APP = "app"
DEAD = {"pid": 1 << 22, "started_after_boot_s": 1.0, "boot_id": "b"}


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
    assert (found.records_per_second, found.partitions) == (None, None)


def test_an_instance_should_have_ended_when_it_or_its_supervisor_wrote_last(tmp_path):
    write_run_file(tmp_path, APP)
    assert only(tmp_path).ended_ms is None
    write_run_file(tmp_path, APP, **DEAD)
    os.utime(run_file_path(tmp_path, APP, 0), (1000, 1000))
    assert only(tmp_path).ended_ms == 1_000_000
    recorded = InstanceFiles(tmp_path, InstanceKey(APP, 0)).exit
    recorded.write_text("{}")
    for at_s, ended_ms in ((999, 1_000_000), (1001, 1_001_000)):
        os.utime(recorded, (at_s, at_s))
        assert only(tmp_path).ended_ms == ended_ms


@pytest.mark.parametrize(("age_s", "is_watched"), [(None, False), (0, True), (115, True), (121, False), (-600, False)])
@pytest.mark.parametrize("is_standby", [False, True])
def test_a_launched_process_should_be_watched_while_a_trigger_says_so(tmp_path, age_s, is_watched, is_standby):
    files = InstanceFiles(tmp_path, InstanceKey(APP, 0, is_standby))
    folder, write = (STANDBYS_FOLDER, write_standby_file) if is_standby else (INSTANCES_FOLDER, write_run_file)

    def found():
        (only_one,) = read_standbys(tmp_path, APP, time.time()) if is_standby else read_instances(tmp_path, APP)
        return only_one.is_watched

    write(tmp_path, APP)
    if age_s is not None:
        watch_claim.take(files, "a trigger")
        os.utime(files.watcher, (time.time() - age_s, time.time() - age_s))
    assert found() is None, "it was started by hand"
    write_launch(tmp_path, APP, 0, Place.here(), Identity.own(), folder)
    assert found() is is_watched
    watch_claim.renew(files)
    assert found() is (age_s is not None)
    write_launch(tmp_path, APP, 0, Place.here(), Identity(1 << 22, 1.0, "b"), folder)
    write(tmp_path, APP, **DEAD)
    assert found() is None, "it has ended"


@pytest.mark.parametrize(("age_s", "is_alive"), [(0, True), (61, False), (-600, False)])
def test_an_instance_on_another_machine_should_be_alive_while_it_writes_its_file(tmp_path, age_s, is_alive):
    there = replace(Place.here(), host="elsewhere", boot_id="another")
    write_launch(tmp_path, APP, 0, there, Identity(1 << 22, 1.0, "b"))
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
    assert read_standbys(tmp_path, APP, time.time()) == []


@pytest.mark.parametrize(("age_s", "is_alive"), [(14, True), (16, False)])
def test_a_standby_on_another_machine_should_be_alive_while_it_writes_its_file(tmp_path, age_s, is_alive):
    write_standby_file(tmp_path, APP, partitions=["0_0", "0_1"], useless_because="nothing was read yet", **DEAD)
    written_s = standby_file_path(tmp_path, APP, 0).stat().st_mtime
    (found,) = read_standbys(tmp_path, APP, written_s + age_s)
    assert (found.name, found.is_alive, found.instance) == ("app-standby-0", is_alive, "standby-0")
    assert found.useless_because == "nothing was read yet"


@pytest.mark.parametrize(("silent_s", "useful"), [(59, True), (60, False), (61, False)])
def test_a_standby_that_runs_and_reports_nothing_should_not_be_shown_as_useful(tmp_path, silent_s, useful):
    write_standby_file(tmp_path, APP, useful=True, useless_because=None)
    written_s = standby_file_path(tmp_path, APP, 0).stat().st_mtime
    (found,) = read_standbys(tmp_path, APP, written_s + silent_s)
    assert (found.is_alive, found.useful) == (True, useful)
    assert (found.useless_because or "").startswith("" if useful else f"it has reported nothing for {silent_s}")


def test_a_standby_that_died_before_its_run_file_should_be_listed(tmp_path):
    write_launch(tmp_path, APP, 1, Place.here(), Identity(1 << 22, 1.0, "b"), STANDBYS_FOLDER)
    (tmp_path / STANDBYS_FOLDER / f"{APP}-1.exit").write_text('{"launch_id": "l1", "exit_code": 137}')
    (found,) = read_standbys(tmp_path, APP, time.time())
    assert (found.instance, found.state, found.is_alive, found.exit_code) == ("standby-1", LOST, False, 137)
    assert local_instances(tmp_path, time.time()) == [found]


def test_a_standby_of_this_machine_should_be_lost_as_soon_as_its_process_is_gone(tmp_path):
    write_launch(tmp_path, APP, 0, Place.here(), Identity(1 << 22, 1.0, "b"), STANDBYS_FOLDER)
    write_standby_file(tmp_path, APP, useful=True, same_rack_tasks=["0_0"], **DEAD)
    (found,) = read_standbys(tmp_path, APP, time.time())
    assert (found.state, found.is_alive, found.useful, found.same_rack_tasks) == (LOST, False, None, ())


@pytest.mark.parametrize(("exit_code", "has_given_up"), [(0, False), (1, False), (2, True), (10, False), (30, True)])
def test_what_refused_to_start_should_have_given_up(tmp_path, exit_code, has_given_up):
    write_launch(tmp_path, APP, 0, Place.here(), Identity(1 << 22, 1.0, "b"))
    (tmp_path / "instances" / f"{APP}-0.exit").write_text(f'{{"launch_id": "l1", "exit_code": {exit_code}}}')
    assert only(tmp_path).has_given_up is has_given_up


@pytest.mark.parametrize(
    ("paused_launch", "was_running", "has_failed"), [("l1", True, False), ("l0", True, True), ("l1", False, True)]
)
def test_one_that_was_killed_after_its_dag_was_paused_should_not_have_failed(
    tmp_path, paused_launch, was_running, has_failed
):
    """A DAG whose stream has failed pauses itself, which does not make a stopped stream of it."""
    write_run_file(tmp_path, APP, **DEAD)
    write_launch(tmp_path, APP, 0, Place.here(), Identity(1 << 22, 1.0, "b"))
    files = InstanceFiles(tmp_path, InstanceKey(APP, 0))
    write_json(files.exit, {"launch_id": "l1", "exit_code": 137})
    record_pause(files, paused_launch, is_running=was_running)
    found = only(tmp_path)
    assert (found.exit_code, found.was_stopped_by_pause, found.has_failed) == (137, not has_failed, has_failed)


def test_all_instances_should_include_one_elsewhere_and_one_that_is_launched(tmp_path):
    there = replace(Place.here(), host="elsewhere", boot_id="another")
    write_launch(tmp_path, APP, 0, there, Identity(1 << 22, 1.0, "b"))
    write_run_file(tmp_path, APP, **DEAD)
    write_launch(tmp_path, "b-1", 0, Place.here(), Identity.own())
    write_run_file(tmp_path, "b-1", 2, state="NOT_RUNNING", **DEAD)
    write_standby_file(tmp_path, "b-1")
    (tmp_path / "instances" / "app-0.savepoint.json").write_text("{}")
    found = [(one.name, one.state, one.is_alive, one.host) for one in local_instances(tmp_path, time.time())]
    here = Place.here().host
    assert found == [
        ("app-0", "RUNNING", True, "elsewhere"),
        ("b-1-0", "CREATED", True, here),
        ("b-1-2", "NOT_RUNNING", False, here),
        ("b-1-standby-0", "RUNNING", True, here),
    ]


@pytest.mark.parametrize("given", [{"partitions": 5}, {"restoring": {"store": "n"}}])
def test_a_file_of_another_version_should_be_left_out_and_not_hide_the_others(tmp_path, given):
    write_run_file(tmp_path, APP, **given)
    write_standby_file(tmp_path, APP, partitions=5)
    write_run_file(tmp_path, APP, 1)
    assert [one.name for one in local_instances(tmp_path, time.time())] == ["app-1"]


def test_a_restore_that_is_not_described_should_not_be_shown(tmp_path):
    write_run_file(tmp_path, APP, restoring=7)
    assert only(tmp_path).restore is None


def test_the_age_of_the_last_commit_should_be_unknown_before_the_first(tmp_path):
    write_run_file(tmp_path, APP)
    assert only(tmp_path).seconds_since_commit(10.0) is None
    write_run_file(tmp_path, APP, last_commit_ms=7_500)
    assert only(tmp_path).seconds_since_commit(10.0) == 2.5
