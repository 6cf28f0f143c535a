"""Offsets that are committed again without input, because brokers delete offsets that are 7 days old."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.commit.record import CommitKind
from tidemark.instance.instance import Instance

DAY_MS = 86_400_000
NOW = 1_700_000_000_000


def committed(*offsets_ms, is_due=False):
    """The offsets' times of the tasks that a tick commits; no task changes anything."""
    instance, batches = Instance.__new__(Instance), []
    instance.clock = lambda: NOW
    instance.capacity = SimpleNamespace(records=1000)
    instance._tasks = {
        number: SimpleNamespace(
            offsets_ms=at_ms,
            next_offsets={"in": 7},
            is_due=lambda _now_ms: is_due,
            prepare=lambda given, _now_ms: SimpleNamespace(
                changes_something=False, records=0, sources={topic: (end, end) for topic, end in given.ends.items()}
            ),
            pass_clock=lambda _update: None,
        )
        for number, at_ms in enumerate(offsets_ms)
    }
    instance._commit_or_reconcile = lambda batch: batches.append(batch) or True
    instance._tick()
    assert {batch.kind for batch in batches} <= {CommitKind.TICK}
    assert all(update.sources == {"in": (7, 7)} for batch in batches for _, update in batch.updates)
    return [task.offsets_ms for batch in batches for task, _ in batch.updates]


@pytest.mark.parametrize(
    ("offsets_ms", "is_committed"),
    [
        (0, True),  # The group does not have them.
        (NOW - DAY_MS - 1, True),
        (NOW - DAY_MS, True),
        (NOW - DAY_MS + 1, False),
        (NOW, False),
        (NOW + DAY_MS - 1, False),
        (NOW + DAY_MS, True),  # By a clock that was ahead, which says nothing about their age.
    ],
)
def test_should_commit_unchanged_offsets_again_after_a_day(offsets_ms, is_committed):
    assert committed(offsets_ms) == [offsets_ms] * is_committed


def test_should_commit_again_only_the_tasks_whose_offsets_are_old():
    assert committed(NOW - DAY_MS, NOW, 0, is_due=True) == [NOW - DAY_MS, 0]
