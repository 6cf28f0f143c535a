"""The state that an instance reports for one task, and for all of its tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.names import TaskId, TopicPartition
from tidemark.queries.active_stores import ActiveStores, RestoreBoard
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import CopyState, StoreRestore

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


@pytest.mark.parametrize(
    ("running", "says"),
    [
        ([], "it opens the stores"),
        ([("n", 2), ("secret", 2)], "store n of partition 2 is at offset 5 of 900"),
        ([("secret", 2), ("n", 0)], "it restores other stores first"),
    ],
)
def test_should_say_of_a_restore_how_far_the_asked_store_is_and_name_no_other_one(stores, monkeypatch, running, says):
    restores = [StoreRestore(name, partition, 5, 900, None) for name, partition in running]
    monkeypatch.setattr(stores, "restores", lambda: restores)
    with pytest.raises(StateUnavailable) as refused:
        stores.open(OPENING, "n")
    assert refused.value.detail == f"instance 0 restores task 0_2: {says}"
    with pytest.raises(StateUnavailable, match="instance 0 does not hold task 0_3"):
        stores.open(UNKNOWN, "n")
