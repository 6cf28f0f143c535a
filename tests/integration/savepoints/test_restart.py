"""An application whose state folder is gone starts from a savepoint and the changelog's tail, on a real broker.

The instance's batches are made by hand instead of by Spark: what a key counts follows from the offsets alone.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from tests.support.counting import AT_MS, PARTITIONS, counted_plan
from tests.support.truth.compare import CHANGELOG_VALUE
from typer.testing import CliRunner

from tidemark.cli import main
from tidemark.cli import savepoint as cli
from tidemark.clock import wall_clock_ms
from tidemark.errors import InstanceFenced, SavepointFailed
from tidemark.instance.assembly import make_instance
from tidemark.instance.source import SourceBatch
from tidemark.kafka.clients import librdkafka_config
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.savepoint import SavepointCommand
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.verification import verify
from tidemark.supervision.final_savepoint_request import ask_for_last
from tidemark.supervision.state import InstanceState

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

KEYS = 700
BATCH = 100
TASKS = [TaskId(0, number) for number in range(PARTITIONS)]


def key_of(place: TopicPartition, offset: int) -> str:
    return f"{place.partition}-{offset * 7 % KEYS}"


class Counting:
    """A `BatchSource` that goes on to the offset `limit`, and waits there until it is raised."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._next_offsets = {}
        self._pause = threading.Event()

    def start(self, next_offsets, max_batch_records):
        self._next_offsets = dict(next_offsets)

    def next(self, timeout_s):
        if min(self._next_offsets.values(), default=self.limit) >= self.limit:
            self._pause.wait(0.01)
            return None
        starts = self._next_offsets
        ends = {place: min(offset + BATCH, self.limit) for place, offset in starts.items()}
        counted = [
            (place.partition, key, count)
            for place, start in starts.items()
            for key, count in Counter(key_of(place, offset) for offset in range(start, ends[place])).items()
        ]
        numbers, keys, counts = map(list, zip(*counted, strict=True))
        flat = {"__status": [0] * len(keys), "__rows": counts, "__max_ts": [AT_MS] * len(keys)}
        flat["__last_offset"] = list(range(len(keys)))
        self._next_offsets = ends
        return SourceBatch(0, starts, ends, [pa.table({"__p": numbers, **flat, "__key": keys, "n": counts})], ())

    def stop(self):
        self._next_offsets = {}


class Run:
    """An instance at work in a thread of its own."""

    def __init__(self, plan, settings, limit):
        self.source = Counting(limit)
        self.stop = threading.Event()
        self.failure = None
        self.instance = make_instance(plan, settings, 0, "made", lambda point: None)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.instance.run(self.source, self.stop)
        except BaseException as error:
            self.failure = error
        finally:
            self.instance.close(self.failure)

    def drained(self):
        tasks = list(self.instance._tasks.values())
        at_end = len(tasks) == PARTITIONS and all(
            offset == self.source.limit for task in tasks for offset in task.next_offsets.values()
        )
        assert self.failure is None
        return at_end

    def counts(self):
        """What the stores hold, once everything up to the limit is committed."""
        assert wait_until(self.drained, 90)
        return {
            key.decode(): CHANGELOG_VALUE.unpack(value)[3]
            for task in self.instance._tasks.values()
            for key, value in task.stores["n"].items(0)
        }


@contextmanager
def running(plan, settings, limit):
    run = Run(plan, settings, limit)
    try:
        yield run
    finally:
        run.stop.set()
        run.thread.join(60)
    assert not run.thread.is_alive()
    assert run.failure is None


def truth(limit: int) -> dict[str, int]:
    return dict(Counter(key_of(TopicPartition("", p), offset) for p in range(PARTITIONS) for offset in range(limit)))


@pytest.fixture
def plan(settings, admin, unique):
    """The plan of a count over two partitions of 3000 records each."""
    return counted_plan(settings, admin, unique("app"), 3000)


def raised(error):
    raise error


def take(plan, settings, tasks=TASKS):
    seen = []
    admin = AdminClient(librdkafka_config(settings))
    command = SavepointCommand(plan, settings, admin, tasks, seen.append, lambda: 1_800_000_000_000 + len(seen))
    taken = command.take()
    assert seen, "progress is told"
    return taken


def starts_of_restores(caplog) -> list[int]:
    return [int(found[1]) for found in re.finditer(r"restore start: .* from=(\d+)", caplog.text)]


def test_should_start_from_a_savepoint_and_the_tail_when_the_state_folder_is_gone(plan, settings, caplog):
    caplog.set_level(logging.INFO)
    with running(plan, settings, 1000) as run:
        assert run.counts() == truth(1000)
        # Before more is read: a copy that is level with the last commit has no tail to be restored.
        taken = take(plan, settings)
        run.source.limit = 1500
        assert run.counts() == truth(1500)
        assert list(run.instance.folder.glob(".savepoints/*")) == []
    (held,) = re.findall(r"savepoint: id=(\S+) tasks=(\S+) held_ms=(\d+)", caplog.text)
    assert held == (taken.manifest.savepoint_id, "0_0,0_1", str(taken.held_ms))
    repository = SavepointRepository(settings.savepoint_location, plan.application_id)
    saved = [repository.task(taken.manifest.savepoint_id, str(task)).stores[0].checkpoint for task in TASKS]

    shutil.rmtree(settings.state_dir)
    caplog.clear()
    with running(plan, settings, 1500) as run:
        assert run.counts() == truth(1500)
        run.source.limit = 2000
        assert run.counts() == truth(2000)
    assert caplog.text.count("RecoveryCandidate(kind=<SourceOfState.SAVEPOINT") == PARTITIONS
    assert sorted(starts_of_restores(caplog)) == sorted(checkpoint.changelog_offset for checkpoint in saved)
    assert min(checkpoint.changelog_offset for checkpoint in saved) > 0


def test_should_skip_a_damaged_savepoint_and_read_the_changelog(plan, settings, caplog):
    caplog.set_level(logging.INFO)
    with running(plan, settings, 1000) as run:
        run.counts()
        take(plan, settings)
    for path in (Path(settings.savepoint_location) / plan.application_id / "files").iterdir():
        data = bytearray(path.read_bytes())
        path.write_bytes(bytes([*data[:-1], data[-1] ^ 1]) if data else b"")
    shutil.rmtree(settings.state_dir)
    caplog.clear()
    with running(plan, settings, 1000) as run:
        assert run.counts() == truth(1000)
    passed_over = [line for line in caplog.messages if "the next source of state is tried" in line]
    assert len(passed_over) == PARTITIONS
    assert all("its sha256 differs" in line for line in passed_over)
    assert starts_of_restores(caplog) == [0] * PARTITIONS
    assert list(settings.state_dir.rglob("*.restoring")) == []


def test_should_take_a_savepoint_of_a_stopped_application_and_start_from_it(plan, settings, caplog):
    caplog.set_level(logging.INFO)
    with running(plan, settings, 1000) as run:
        run.counts()
        with pytest.raises(SavepointFailed, match="lacks task 0_2"):
            take(plan, settings.model_copy(update={"session_timeout_ms": 1}), [*TASKS, TaskId(0, 2)])
    taken = take(plan, settings)
    assert taken.held_ms == 0
    shutil.rmtree(settings.state_dir)
    caplog.clear()
    with running(plan, settings, 1000) as run:
        assert run.counts() == truth(1000)
    assert caplog.text.count("RecoveryCandidate(kind=<SourceOfState.SAVEPOINT") == PARTITIONS
    assert starts_of_restores(caplog) == [], "the savepoint is up to date with the last commit"


def test_should_take_no_savepoint_of_folders_that_lack_the_last_commit(plan, settings):
    with running(plan, settings, 1000) as run:
        run.counts()
    old = settings.model_copy(update={"state_dir": settings.state_dir.with_name("old")})
    shutil.copytree(settings.state_dir, old.state_dir)
    with running(plan, settings, 1500) as run:
        run.counts()
    lacking = r"lack the last commit of task 0_0 \(batch \d+, the last one is \d+\), task 0_1 \(batch \d+"
    with pytest.raises(SavepointFailed, match=lacking):
        take(plan, old)
    assert take(plan, settings).manifest.tasks == ("0_0", "0_1")


def test_should_leave_a_final_savepoint_that_matches_the_committed_offsets(plan, settings, caplog):
    # Its disk may be slow.
    settings = settings.model_copy(update={"last_savepoint_timeout_ms": 60_000})
    caplog.set_level(logging.INFO)
    with running(plan, settings, 1000) as run:
        run.counts()
        asked = ask_for_last(settings.var_dir, plan.application_id, 0, settings.savepoint_location, wall_clock_ms())
        run.source.limit = 1700
        run.counts()
    repository = SavepointRepository(settings.savepoint_location, plan.application_id)
    (left,) = repository.savepoints()
    assert (left.savepoint_id, left.is_complete) == (asked.savepoint_id, True)
    assert list(run.instance.folder.glob(".savepoints/*")) == []
    shutil.rmtree(settings.state_dir)
    caplog.clear()
    with running(plan, settings, 1700) as run:
        assert run.counts() == truth(1700)
    assert caplog.text.count("RecoveryCandidate(kind=<SourceOfState.SAVEPOINT") == PARTITIONS
    assert starts_of_restores(caplog) == []
    assert [one.savepoint_id for one in repository.savepoints()] == [asked.savepoint_id], "nobody asked for another"


def test_should_stop_in_time_when_its_final_savepoint_cannot_be_written(plan, settings, caplog, monkeypatch):
    hurried = settings.model_copy(update={"last_savepoint_timeout_ms": 500})
    never = threading.Event()
    monkeypatch.setattr(SavepointRepository, "begin", lambda *_: never.wait(60))
    with running(plan, hurried, 1000) as run:
        run.counts()
        ask_for_last(settings.var_dir, plan.application_id, 0, settings.savepoint_location, wall_clock_ms())
        run.stop.set()
        run.thread.join(60)
        assert not run.thread.is_alive()
    never.set()
    assert "no last savepoint" in caplog.text
    assert run.instance.states.state is InstanceState.NOT_RUNNING


def test_should_take_no_final_savepoint_when_it_ends_with_an_error(plan, settings):
    run = Run(plan, settings, 1000)
    run.counts()
    ask_for_last(settings.var_dir, plan.application_id, 0, settings.savepoint_location, wall_clock_ms())
    run.source.next = lambda timeout_s: raised(InstanceFenced("another copy"))
    run.thread.join(60)
    assert isinstance(run.failure, InstanceFenced)
    assert SavepointRepository(settings.savepoint_location, plan.application_id).savepoints() == []


def test_should_be_a_source_for_a_restore_too(plan, settings):
    with running(plan, settings, 1000) as run:
        run.counts()
        taken = take(plan, settings)
    (source,) = (source for source in copy_sources(plan, settings) if source.kind is SourceOfState.SAVEPOINT)
    (copy,) = source.find([TASKS[0]])[TASKS[0]]["n"]
    assert taken.manifest.savepoint_id in copy.location


def test_should_take_a_savepoint_by_command_while_the_stream_runs(plan, settings, monkeypatch):
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "load", lambda name: SimpleNamespace(plan=lambda: plan))
    with running(plan, settings, 1000) as run:
        run.counts()
        said = CliRunner().invoke(main.build(), ["savepoint", "take", "made"])
        run.source.limit = 1200
        assert run.counts() == truth(1200)
    assert said.exit_code == 0, said.output
    (savepoint_id,) = re.findall(r"savepoint (\S+): 2 tasks, .* are new; the stream paused for \d+ ms", said.output)
    repository = SavepointRepository(settings.savepoint_location, plan.application_id)
    assert verify(repository, savepoint_id).faults == ()
