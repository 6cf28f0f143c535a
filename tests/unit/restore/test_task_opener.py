"""Several tasks that are opened at the same time, one of which is refused."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tidemark.errors import StartRefused
from tidemark.names import TaskId, TopicPartition
from tidemark.processes import wait_until
from tidemark.restore import task_opener
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.task_opener import Assignment, TaskOpener

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
