"""The cut of an audit while an application rests, writes, or a transaction hangs; the brokers are made up."""

from __future__ import annotations

import pytest
from tests.quality.test_audit_ranges import START, history

from tidemark.names import TaskId, TopicPartition
from tidemark.quality import cut as module
from tidemark.quality.cut import Cutter
from tidemark.topology.builder import Topology

OUT, LOG, DLQ, COMMITS = (TopicPartition(t, 1) for t in ("out", "app-s-changelog", "app-dlq", "app-commits"))


def plan():
    topology = Topology("app")
    topology.stream("in", schema="id STRING", key="id").group_by_key().count(store="s").to("out")
    return topology.plan()


class Brokers:
    """Ends of all partitions; `open` are those whose read_committed end stands below, `moves` says whether it goes on."""

    def __init__(self, end=500, is_open=(), moves=True, grows=False):
        self.end, self.is_open, self.moves, self.grows = end, set(is_open), moves, grows
        self.asked = 0

    def of(self, partitions):
        self.asked += 1
        return dict.fromkeys(partitions, self.end + (self.asked if self.grows else 0))

    def stable(self, partitions):
        stuck = 30 + (self.asked if self.moves else 0)
        self.asked += 1
        return {p: stuck if p in self.is_open else self.end for p in partitions}

    def beginnings(self, partitions):
        return dict.fromkeys(partitions, 0)


@pytest.fixture
def cutting(monkeypatch):
    read = {}

    def commits(_client, _ends, _app, _tasks, *, stalled_after_s, from_offsets, end_offsets):
        read.update({"from": from_offsets, "to": end_offsets})
        changed = {"out": {0: 0, 1: 0}, "app-s-changelog": {1: 0}, "app-dlq": {0: 0, 1: 0}}
        for record in [START, *history(1, 3)]:
            ends = {t: dict.fromkeys(ps, 20 * record.batch) for t, ps in changed.items()}
            yield module.replace(record, ends_before=ends)

    monkeypatch.setattr(module, "commit_history", commits)
    monkeypatch.setattr(module, "_QUIET_WAIT_S", 0.001)
    monkeypatch.setattr(module, "_HANGING_WAIT_S", 0.001)

    def cut(brokers, before=None):
        partitions = {"in": 2, "out": 2, "app-s-changelog": 2, "app-dlq": 2, "app-commits": 2}
        cutter = Cutter(plan(), {}, brokers, partitions, 30, 86_400_000, lambda: START.commit_time_ms)
        return cutter.cut(before or {}, 100), read

    return cut


def last(cut):
    return cut.ranges[TaskId(0, 1)].records[-1].batch


def test_should_take_the_newest_batch_of_an_application_that_rests(cutting):
    cut, read = cutting(Brokers())
    assert last(cut) == 3
    assert cut.ranges.keys() == {TaskId(0, 1)}
    assert {end.waited_ms for end in cut.ends} == {0}
    assert read["from"] == {TopicPartition("app-commits", 0): 0, COMMITS: 0}
    # The next audit reads the commits topic from here on.
    again, read = cutting(Brokers(), {TaskId(0, 1): cut.ranges[TaskId(0, 1)].end})
    assert read["from"][COMMITS] == 500
    assert again.ranges == {}


def test_should_leave_the_newest_batch_while_topics_grow(cutting):
    cut, _ = cutting(Brokers(grows=True))
    assert last(cut) == 2
    # It was not the newest, so its commit records are read again.
    assert cut.ranges[TaskId(0, 1)].commits_from == 0


def test_should_not_call_a_transaction_hanging_that_ends(cutting):
    cut, _ = cutting(Brokers(is_open=[OUT]))
    assert [end.partition for end in cut.ends if end.committed_end < end.end] == []


def test_should_name_where_a_transaction_hangs_and_audit_what_lies_before(cutting):
    cut, _ = cutting(Brokers(is_open=[OUT, COMMITS], moves=False))
    hanging = {end.partition: end for end in cut.ends if end.committed_end < end.end}
    assert hanging.keys() == {OUT, COMMITS}
    assert hanging[OUT].waited_ms >= 30
    assert (hanging[OUT].committed_end, hanging[OUT].end) == (30, 500)
    assert last(cut) == 0
