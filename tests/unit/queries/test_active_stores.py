"""The state that an instance reports for one task, and for all of its tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.names import TaskId, TopicPartition
from tidemark.queries.active_stores import ActiveStores, RestoreBoard
from tidemark.queries.hosts import CopyState

OWNED, LOST, OPENING, UNKNOWN = (TaskId(0, number) for number in range(4))


@pytest.fixture
def stores():
    epochs = {TopicPartition("in", 0): 1, TopicPartition("in", 1): 2}
    made = ActiveStores("0", {}, epochs.get, RestoreBoard())
    tasks = [
        SimpleNamespace(id=each, lead=TopicPartition("in", each.partition), epoch=1, stores={"n": object()})
        for each in (OWNED, LOST)
    ]
    made.replace(tasks, [OPENING])
    return made


def test_should_say_the_same_of_one_task_as_of_all(stores):
    assert stores.copies() == {OWNED: CopyState.ACTIVE, OPENING: CopyState.RESTORING}
    for task in (OWNED, LOST, OPENING, UNKNOWN):
        assert stores.state_of(task) == stores.copies().get(task)
