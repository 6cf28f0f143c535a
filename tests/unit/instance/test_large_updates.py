"""A batch whose updates have more records than one transaction can hold at the known rate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.instance.instance import Instance
from tidemark.instance.source import SourceBatch
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition
from tidemark.settings import Settings

PLACE = TopicPartition("in", 0)


class OneTask(Instance):
    """An instance with one task, whose update has ten times the records that a transaction is known to hold."""

    def __init__(self):
        self.settings = Settings.load()
        self.plan = SimpleNamespace(subtopologies=[SimpleNamespace(lead=PLACE)])
        self.size = BatchSize(1_000_000, known=50_000)
        self.capacity = SimpleNamespace(records=10)
        self.clock = lambda: 0
        self.source_watch = SimpleNamespace(require_unchanged=lambda: None)
        update = SimpleNamespace(records=100, cached_bytes=0)
        task = SimpleNamespace(
            id=SimpleNamespace(partition=0),
            sources={PLACE: 0},
            next_offsets={"in": 0},
            prepare=lambda _given, _now_ms: update,
        )
        self._tasks = {PLACE: task}
        self.shrunk, self.committed, self.reopened = [], [], 0

    def _shrink(self, why, load=2.0):
        self.shrunk.append(load)

    def _reopen(self):
        self.reopened += 1

    def _commit_or_reconcile(self, batch):
        self.committed.append(batch)
        return True


@pytest.mark.parametrize(("held", "is_committed"), [(1001, False), (1000, True), (1, True)])
def test_should_not_read_a_batch_again_that_cannot_become_smaller(held, is_committed):
    """Thousands of windows that close at once come of one record: each try took as long, and changed nothing."""
    instance = OneTask()
    instance._process(SourceBatch(0, {PLACE: 0}, {PLACE: held}, [], []))
    assert (len(instance.committed), instance.shrunk) == ((1, []) if is_committed else (0, [10.0]))


@pytest.mark.parametrize("start", [-1, 1])
def test_should_discard_a_batch_that_does_not_begin_where_its_tasks_stand(start):
    """Its records would be counted twice or skipped, and the commit records would not show it."""
    instance = OneTask()
    instance._process(SourceBatch(0, {PLACE: start}, {PLACE: 1000}, [], []))
    assert (instance.committed, instance.shrunk, instance.reopened) == ([], [], 1)
