"""An instance on a real broker, with hand-made batches instead of Spark's: when it joins, and a revocation at the start."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import pyarrow as pa
import pytest
from tests.support.counting import NO_PROBE, PARTITIONS, counted_plan
from tests.support.truth.topics import read_all

from tidemark.instance.assembly import make_instance
from tidemark.instance.source import SourceBatch, StartingSource
from tidemark.names import TopicPartition, commits_topic
from tidemark.processes import wait_until
from tidemark.queries.hosts import CopyState
from tidemark.supervision.live_instances import Request, live_instances, request_path, write_request
from tidemark.supervision.run_file import RunFile
from tidemark.supervision.state import InstanceState

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


class OneBatch:
    """A `BatchSource` that gives one batch over all partitions, and stops the instance when it is asked for a second."""

    def __init__(self, stop: threading.Event) -> None:
        self.started: list[set[int]] = []
        self.on_start = lambda: None
        self._stop = stop
        self._next_offsets = {}
        self._given = False

    def start(self, next_offsets, max_batch_records):
        self._next_offsets = dict(next_offsets)
        self.started.append({place.partition for place in next_offsets})
        self.on_start()

    def next(self, timeout_s):
        if len(self._next_offsets) < PARTITIONS:
            return None
        if self._given:
            self._stop.set()
            return None
        self._given = True
        ends = {place: offset + 1 for place, offset in self._next_offsets.items()}
        numbers = sorted(place.partition for place in ends)
        columns = {
            "__p": numbers,
            "__status": [0] * PARTITIONS,
            "__rows": [1] * PARTITIONS,
            "__max_ts": [1] * PARTITIONS,
        }
        table = pa.table(
            {
                **columns,
                "__last_offset": [0] * PARTITIONS,
                "__key": [f"k{number}" for number in numbers],
                "n": [1] * PARTITIONS,
            }
        )
        return SourceBatch(0, self._next_offsets, ends, [table], ())

    def stop(self):
        self._next_offsets = {}


@pytest.fixture
def application(settings, admin, unique):
    """The plan of a count over two partitions that hold a record each."""
    return counted_plan(settings, admin, unique("app"), 1)


@pytest.mark.parametrize(("revoked", "comes_back"), [(0, "at once"), (1, "at once"), (0, "later"), (1, "later")])
def test_should_start_each_fresh_task_once_when_one_was_revoked_during_their_start(
    application, settings, revoked, comes_back
):
    lost = TopicPartition(application.subtopologies[0].lead.topic, revoked)
    stop = threading.Event()
    source = OneBatch(stop)
    aborted = []

    def revoke(point):
        if point != "1-begin" or aborted:
            return
        ownership = instance.member.ownership
        aborted.append(set(ownership.held()))
        ownership.revoked([lost])
        if comes_back == "at once":
            ownership.assigned([lost])
        else:
            source.on_start = give_back

    def give_back():
        if instance.member.ownership.epoch(lost) is None:
            instance.member.ownership.assigned([lost])
            instance.changed.set()

    instance = make_instance(application, settings, 0, "made", revoke)
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    try:
        instance.run(source, stop)
        running = {place.partition for place in instance._tasks}
    finally:
        too_long.cancel()
        instance.close(None)

    assert [len(held) for held in aborted] == [PARTITIONS], "both tasks were to start in the commit that was aborted"
    assert source.started == ([{0, 1}] if comes_back == "at once" else [{1 - revoked}, {0, 1}])
    assert running == {0, 1}
    kept = read_all(settings.bootstrap_servers, [commits_topic(application.application_id)])
    records = [json.loads(row.value) for rows in kept.values() for row in rows]
    summary = sorted((record["task"], record["batch"], record["kind"]) for record in records)
    assert summary == [("0_0", 0, "start"), ("0_0", 1, "batch"), ("0_1", 0, "start"), ("0_1", 1, "batch")]


@contextmanager
def running_without_source(plan, settings):
    """Instance 0 with its tasks open, whose source never starts."""
    stop, failures = threading.Event(), []
    instance = make_instance(plan, settings, 0, "made", NO_PROBE)

    def run():
        try:
            instance.run(StartingSource(Future()), stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert wait_until(lambda: instance.states.state is InstanceState.RUNNING, 60), failures
        yield instance
    finally:
        stop.set()
        thread.join(60)
        instance.close(None)
    assert failures == []
    assert not thread.is_alive()
    assert instance.states.state is InstanceState.NOT_RUNNING


def test_should_open_its_tasks_and_stop_although_its_source_has_not_started(application, settings):
    with running_without_source(application, settings) as instance:
        assert list(instance.active_stores.copies().values()) == [CopyState.ACTIVE] * PARTITIONS


def test_should_be_awaited_unless_others_process_its_tasks(application, settings):
    # The session of the one that has stopped must not end while the test asks.
    settings = settings.model_copy(update={"session_timeout_ms": 300_000})

    def is_awaited(number):
        instance = make_instance(application, settings, number, "made", NO_PROBE)
        try:
            return instance.is_awaited()
        finally:
            instance.close(None)

    assert is_awaited(0), "the group has no member yet"
    with running_without_source(application, settings):
        assert not is_awaited(1)
    assert is_awaited(0), "the group keeps the tasks of a member that has stopped for it until its session ends"
    assert not is_awaited(1)


def test_should_keep_a_request_for_a_savepoint_that_comes_once_the_instance_is_seen(application, settings, monkeypatch):
    """A command waits for its answer for as long as the instance runs."""
    app = application.application_id
    path = request_path(settings.var_dir, app, 0)
    real, asked = RunFile._write, []

    def written(run_file: RunFile) -> None:
        real(run_file)
        if not asked:
            asked.extend(live_instances(settings.var_dir, app))
            write_request(path, Request("20270101T000000-aaaaaa", settings.savepoint_location))

    monkeypatch.setattr(RunFile, "_write", written)
    make_instance(application, settings, 0, "counting", NO_PROBE).close(None)
    assert [one.instance for one in asked] == [0]
    assert path.exists()
