"""An instance that starts on the machine of a standby takes its copy and reads only the tail of the changelog."""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager

import pytest
from tests.support.standby import contents, count

from tidemark.instance.assembly import make_instance
from tidemark.names import TaskId, TopicPartition
from tidemark.standby.copies import write_copies
from tidemark.standby.handover import Handovers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TASK = TaskId(0, 0)
KEPT = 500


class Opened:
    """A `BatchSource` that stops the instance as soon as its tasks are open."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def start(self, next_offsets, max_batch_records):
        self._stop.set()

    def next(self, timeout_s):
        return None

    def stop(self):
        return


def state_after_a_start(application):
    """What the store of task 0_0 holds once an instance has opened it, and the task's changelog offset."""
    stop = threading.Event()
    instance = make_instance(application.plan, application.settings, 0, "made", lambda point: None)
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    try:
        instance.run(Opened(stop), stop)
        task = instance._tasks[TopicPartition(application.source, 0)]
        store = task._stores["n"]
        return contents(store), store.checkpoint, task.batch
    finally:
        too_long.cancel()
        instance.close(None)


def read_in_starts(caplog):
    """(from, to, records) of every restore that was logged of partition 0."""
    begun = re.findall(r"restore start: store=n changelog=\S+\[0\] from=(\d+) to=(\d+)", caplog.text)
    ended = re.findall(r"restore end: store=n changelog=\S+\[0\] records=(\d+)", caplog.text)
    return [(int(start), int(end), int(records)) for (start, end), records in zip(begun, ended, strict=True)]


@contextmanager
def answering(follower, root):
    """Only hand-overs: the copy stands where it is, so there is a tail to be read."""
    write_copies(root, follower.stores)
    handovers, stop = Handovers(root), threading.Event()

    def answer():
        while not stop.wait(0.02):
            handovers.answer(follower.store)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def behind(counting, standby):
    """A standby that has read `KEPT` records of partition 0, of a changelog that has two more since."""
    counting.commit({"n": {0: [(b"%d" % i, count(i)) for i in range(KEPT)], 1: [(b"x", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    counting.commit({"n": {0: [(b"new", count(1)), (b"7", None)]}})
    return follower


@pytest.mark.usefixtures("patient")
def test_should_start_from_a_live_standbys_copy_and_read_only_the_tail(counting, behind, settings, caplog):
    caplog.set_level(logging.INFO)
    stood = behind.store(TASK, "n").next_offset
    root = settings.state_dir / "standby-0" / counting.id
    with answering(behind, root):
        held, checkpoint, batch = state_after_a_start(counting)
    ((start, end, records),) = read_in_starts(caplog)
    assert (start, records) == (stood, 2)
    assert held == counting.fold("n")
    assert (checkpoint.batch, checkpoint.changelog_offset, dict(checkpoint.source_offsets)) == (
        batch,
        end,
        {counting.source: 0},
    )
    counting.follow(behind)
    assert behind.store(TASK, "n").records == KEPT + 2, "the standby goes on with its own copy"


def test_should_take_a_dead_standbys_folder_over_and_read_only_the_tail(counting, behind, settings, caplog):
    caplog.set_level(logging.INFO)
    stood = behind.store(TASK, "n").next_offset
    behind.end()
    held, checkpoint, batch = state_after_a_start(counting)
    assert "took the state over from" in caplog.text
    left = settings.state_dir / "standby-0" / counting.id / "0_0"
    assert not left.exists(), caplog.text
    ((start, _, records),) = read_in_starts(caplog)
    assert (start, records) == (stood, 2)
    assert (held, checkpoint.batch) == (counting.fold("n"), batch)


def test_should_read_the_whole_changelog_when_the_standby_does_not_answer(counting, behind, settings, caplog):
    caplog.set_level(logging.INFO)
    write_copies(settings.state_dir / "standby-0" / counting.id, behind.stores)
    held, _, _ = state_after_a_start(counting)
    assert "did not hand n of task 0_0 over" in caplog.text
    assert "the next source of state is tried" in caplog.text
    ((start, _, records),) = read_in_starts(caplog)
    assert (start, records) == (0, KEPT + 2)
    assert held == counting.fold("n")


def test_should_not_take_over_a_dead_instances_folder_in_a_standby(counting, standby, settings):
    """The instance will use its folder when it starts again."""
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    kept = settings.state_dir / "0" / counting.id / "0_0" / "rocksdb" / "n"
    kept.mkdir(parents=True)
    counting.follow(standby(counting))
    assert kept.exists()
