"""The replay begins with the first commit record of a task: nothing may have been committed, or left unread, before it."""

from __future__ import annotations

import pytest
from tests.support.truth.replay import faults_of_first

from tidemark.commit.record import CommitKind, commit_record
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes

TASK = TaskId(0, 1)


def record(kind, start):
    return commit_record(
        kind, "app", "1", TASK, 1, 5, spans={"in": (start, start)}, stream_times=StreamTimes.none(), changelogs={},
        ends_before={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "start", "begins_again", "fault"),
    [
        (CommitKind.START, 6, False, None),
        (CommitKind.START, 7, False, None),
        (CommitKind.START, 8, False, "task 0_1: starts at offset 8 of in, which begins at 7"),
        (CommitKind.START, 8, True, None),
        (CommitKind.RESET, 8, True, None),
        (CommitKind.RESET, 7, False, "task 0_1: the first commit record is batch 1 of kind reset, not of its start"),
        (CommitKind.BATCH, 7, False, "task 0_1: the first commit record is batch 1 of kind batch, not of its start"),
        (CommitKind.BATCH, 7, True, "task 0_1: the first commit record is batch 1 of kind batch, not of its start"),
    ],
)
def test_should_find_what_is_missing_before_the_first_commit_record(kind, start, begins_again, fault):
    found = faults_of_first(record(kind, start), {("in", 1): 7}, begins_again=begins_again)
    assert found == ([] if fault is None else [fault])
