"""A source that is used before it has started: what it is asked for meanwhile, and a start that fails."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from tidemark.instance.source import SourceBatch, StartingSource
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition

FIRST, SECOND = TopicPartition("in", 0), TopicPartition("in", 1)
BATCH = SourceBatch(0, {}, {}, [], [])
SIZE = BatchSize(10)


@dataclass
class Recording:
    """A `BatchSource` that notes what it is asked for."""

    asked: list[object] = field(default_factory=list)

    def warm_up(self):
        self.asked.append("warm-up")

    def start(self, next_offsets, size):
        self.asked.append(dict(next_offsets))

    def next(self, timeout_s):
        self.asked.append("next")
        return BATCH

    def stop(self):
        self.asked.append("stop")

    def read_table(self, spec, partition, start, end, should_continue):
        yield from range(start, end)


@pytest.fixture
def starting():
    return Future()


def test_should_give_no_batch_until_it_has_started_and_then_read_what_was_wanted_last(starting):
    source, behind = StartingSource(starting), Recording()
    source.start({FIRST: 1}, SIZE)
    assert source.next(0.01) is None
    source.stop()
    source.start({SECOND: 2}, SIZE)
    assert source.next(0.01) is None
    starting.set_result(behind)
    assert source.next(0.01) is BATCH
    assert source.next(0.01) is BATCH
    assert behind.asked == [{SECOND: 2}, "next", "next"]


def test_should_not_read_what_is_no_longer_wanted_when_it_has_started(starting):
    source, behind = StartingSource(starting), Recording()
    source.start({FIRST: 1}, SIZE)
    source.stop()
    starting.set_result(behind)
    source.next(0.01)
    assert behind.asked == ["warm-up", "next"]


def test_should_be_the_source_behind_it_once_that_has_started(starting):
    source, behind = StartingSource(starting), Recording()
    starting.set_result(behind)
    source.start({FIRST: 1}, SIZE)
    source.stop()
    source.start({SECOND: 2}, SIZE)
    assert behind.asked == ["warm-up", {FIRST: 1}, "stop", {SECOND: 2}]


def test_should_warm_up_if_it_has_started_before_it_was_used(starting):
    behind = Recording()
    starting.set_result(behind)
    StartingSource(starting)
    assert behind.asked == ["warm-up"]


def test_should_raise_what_kept_it_from_starting_but_still_stop(starting):
    source = StartingSource(starting)
    source.start({FIRST: 1}, SIZE)
    starting.set_exception(ValueError("no Java"))
    with pytest.raises(ValueError, match="no Java"):
        source.next(0.01)
    with pytest.raises(ValueError, match="no Java"):
        source.start({FIRST: 1}, SIZE)
    with pytest.raises(ValueError, match="no Java"):
        list(source.read_table(None, FIRST, 0, 3, lambda: True))
    source.stop()


def test_should_read_a_table_when_it_has_started_unless_the_restore_is_no_longer_wanted(starting):
    source = StartingSource(starting)
    looks = iter([True, True, False])
    assert list(source.read_table(None, FIRST, 0, 3, lambda: next(looks))) == []
    starting.set_result(Recording())
    assert list(source.read_table(None, FIRST, 0, 3, lambda: True)) == [0, 1, 2]
