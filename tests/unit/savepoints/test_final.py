"""The final savepoint of a stop: taken on request, shared by all instances that stop together, and bounded in time."""

from __future__ import annotations

import logging
import re
import threading
import time
from types import SimpleNamespace

import pytest
from tests.support.logged import logged_by
from tests.support.savepoints import APP, SPEC, TASKS

from tidemark.processes import wait_until
from tidemark.savepoints.final import LastSavepoint
from tidemark.savepoints.repository import SavepointRepository
from tidemark.supervision.final_savepoint_request import ask_for_last, leaving_path
from tidemark.supervision.live_instances import read_request
from tidemark.supervision.savepoint_ids import begun_ms

NOW_MS = 1_800_000_000_000
SUBTOPOLOGY = SimpleNamespace(stores=(SPEC,))


class Bench:
    """An application without Kafka: tasks with real stores, and a repository."""

    def __init__(self, tmp_path, stores):
        self.var_dir = tmp_path / "var"
        (self.var_dir / "instances").mkdir(parents=True)
        self.links = tmp_path / "links"
        self.location = str(tmp_path / "savepoints")
        self.tasks = [
            SimpleNamespace(id=task, stores={"counts": store}, subtopology=SUBTOPOLOGY)
            for task, store in stores.items()
        ]
        self.repository = SavepointRepository(self.location, APP)

    def last(self, instance=0, timeout_s=60.0):
        path = leaving_path(self.var_dir, APP, instance)
        return LastSavepoint(APP, "1", TASKS, path, self.links / str(instance), timeout_s, lambda: NOW_MS)

    def ask(self, instance=0, now_ms=NOW_MS, location=None, app=APP):
        return ask_for_last(self.var_dir, app, instance, location or self.location, now_ms).savepoint_id


@pytest.fixture
def bench(tmp_path, stores):
    return Bench(tmp_path, stores)


def test_should_be_complete_when_the_only_instance_has_stopped(bench, caplog):
    caplog.set_level(logging.INFO)
    last = bench.last()
    asked = bench.ask()
    last.take(bench.tasks)
    (left,) = bench.repository.savepoints()
    assert (left.savepoint_id, left.is_complete, left.tasks) == (asked, True, ("0_0", "0_1"))
    assert [bench.repository.task(asked, str(task)).stores[0].checkpoint.batch for task in TASKS] == [1, 2]
    assert not bench.links.joinpath("0").exists()
    assert re.search(rf"last savepoint: id={asked} tasks=0_0,0_1 whole=yes bytes=\d+ copied=\d+", caplog.text)


def test_should_be_one_savepoint_of_all_instances_that_stop_together(bench, caplog):
    caplog.set_level(logging.INFO)
    both = [bench.last(0), bench.last(1)]
    assert bench.ask(0) == bench.ask(1)
    both[0].take(bench.tasks[:1])
    (left,) = bench.repository.savepoints()
    assert (left.is_complete, left.tasks) == (False, ("0_0",))
    assert "whole=not yet" in caplog.text
    both[1].take(bench.tasks[1:])
    (left,) = bench.repository.savepoints()
    assert (left.is_complete, left.tasks) == (True, ("0_0", "0_1"))
    # One without tasks comes last: nothing is taken away.
    bench.ask(2)
    idle = bench.last(2)
    bench.ask(2)
    idle.take([])
    (again,) = bench.repository.savepoints()
    assert again.manifest == left.manifest


def test_should_take_none_when_nobody_asks(bench):
    bench.last().take(bench.tasks)
    assert bench.repository.savepoints() == []


def test_should_ignore_a_request_to_an_earlier_process(bench):
    bench.ask()
    bench.last().take(bench.tasks)
    assert bench.repository.savepoints() == []


def test_should_take_none_when_it_is_given_no_time(bench):
    last = bench.last(timeout_s=0.0)
    bench.ask()
    last.take(bench.tasks)
    assert bench.repository.savepoints() == []


@pytest.mark.parametrize("location", ["no-such-protocol://x", "file:///proc/nowhere"])
def test_should_report_an_unusable_location_and_continue(bench, location, caplog):
    last = bench.last()
    asked = bench.ask(location=location)
    last.take(bench.tasks)
    (said,) = [record.getMessage() for record in logged_by(caplog, "tidemark.savepoints")]
    assert said.startswith(f"no last savepoint: id={asked}: ")
    assert location in said
    assert said.endswith("; the stop continues")
    assert not bench.links.joinpath("0").exists()


def test_should_report_the_error_of_the_file_system(bench, caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("no key for this bucket")

    monkeypatch.setattr(SavepointRepository, "begin", fail)
    last = bench.last()
    asked = bench.ask()
    last.take(bench.tasks)
    assert f"no last savepoint: id={asked}: no key for this bucket; the stop continues" in caplog.text


def test_should_not_wait_longer_than_allowed_for_a_location_that_does_not_answer(bench, stuck, caplog):
    last = bench.last(timeout_s=0.5)
    bench.ask()
    started = time.monotonic()
    last.take(bench.tasks)
    assert 0.5 <= time.monotonic() - started < 30
    assert f"{bench.location} has not accepted it within 0.5 s" in caplog.text
    assert not bench.links.joinpath("0").exists()
    stuck.set()
    copiers = [thread for thread in threading.enumerate() if thread.name == "last savepoint"]
    assert wait_until(lambda: not any(thread.is_alive() for thread in copiers), 60)
    assert not any(savepoint.is_complete for savepoint in bench.repository.savepoints())
    assert len(logged_by(caplog, "tidemark.savepoints")) == 1


@pytest.mark.parametrize(("after_ms", "together"), [(29_999, True), (30_000, True), (30_001, False)])
def test_should_treat_stops_within_half_a_minute_as_one(bench, after_ms, together):
    first = bench.ask(0)
    assert begun_ms(first) == NOW_MS
    assert (bench.ask(1, NOW_MS + after_ms) == first) is together


def test_should_share_nothing_with_other_applications_and_locations(bench):
    first = bench.ask(0)
    assert bench.ask(0, app=f"{APP}-x") != first
    assert bench.ask(1, location="/elsewhere") != first
    # Asked once more, the instance alone: another stop.
    assert bench.ask(0) != first
    assert read_request(leaving_path(bench.var_dir, APP, 0)).location == bench.location
