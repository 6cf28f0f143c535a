"""Several tasks that are opened at the same time, one of which is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tidemark.errors import StartRefused, UserCodeFailed
from tidemark.names import TaskId, TopicPartition
from tidemark.processes import wait_until
from tidemark.recovery.evidence import CommittedProgress
from tidemark.restore import task_opener
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.task_opener import Assignment, TaskOpener
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology
from tidemark.topology.stores import store

REFUSED, RESTORING = (Assignment(TaskId(0, number), TopicPartition("in", number), 1) for number in (0, 1))


@pytest.fixture
def opener(monkeypatch):
    monkeypatch.setattr(task_opener, "find_copies", lambda _, tasks: {task: {} for task in tasks})
    return TaskOpener(
        plan=None, settings=SimpleNamespace(restore_threads=2), directory=None, member=None,
        witnesses=SimpleNamespace(facts=lambda tasks: dict.fromkeys(tasks)), opener=None,
        builder=SimpleNamespace(copies=()), sink_partitions={}, limits=None, writers={},
        takeover=SimpleNamespace(of_dead_owners=lambda tasks, number: None), number=0,
    )  # fmt: skip


def test_should_suspend_the_other_restores_when_a_task_is_refused(opener, monkeypatch):
    is_restoring, suspended = threading.Event(), []

    def open_one(self, assignment, facts, elsewhere, should_continue):
        if assignment == REFUSED:
            assert is_restoring.wait(30)
            raise StartRefused("task 0_0: its changelog is lost")
        assert should_continue()
        is_restoring.set()
        suspended.append(wait_until(lambda: not should_continue(), 10))
        raise RestoreSuspended("in the middle")

    monkeypatch.setattr(TaskOpener, "_open_one", open_one)
    with pytest.raises(StartRefused, match="its changelog is lost"):
        opener.open([REFUSED, RESTORING], lambda _: True)
    assert suspended == [True]


def test_should_close_the_stores_and_the_folder_when_a_processor_cannot_be_initialised(opener, monkeypatch, tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    stream.process(
        "tests.support.used_processors:RaisesWithoutTextInInit", emits="n BIGINT", stores=[store("s", "n BIGINT")]
    ).to("out")
    held, closed = MemoryStore(), []
    held.close = lambda: closed.append("s")
    progress = CommittedProgress({"in": 0}, 0, StreamTimes.none())
    monkeypatch.setattr(TaskOpener, "_rank_of", lambda *_: lambda folder: None)
    monkeypatch.setattr(TaskOpener, "_copies", lambda *_: {})
    monkeypatch.setattr(TaskOpener, "_bring_level", lambda *_: (progress, False))
    directory = InstanceDirectory(tmp_path, "app", 0)
    opening = replace(
        opener, plan=topology.plan(), directory=directory, opener=SimpleNamespace(open=lambda path, spec: held),
        witnesses=SimpleNamespace(clock=lambda: 0), settings=SimpleNamespace(sql_memory_bytes=1 << 20),
    )  # fmt: skip
    with pytest.raises(UserCodeFailed):
        opening._open_one(REFUSED, SimpleNamespace(offsets_ms=0), {}, lambda: True)
    assert closed == ["s"]
    # The folder was released, too.
    directory.open_task(REFUSED.task).close()
