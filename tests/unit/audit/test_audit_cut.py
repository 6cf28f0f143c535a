"""The cut of an audit while an application is idle or writes, or while a transaction hangs; with fake brokers."""

from __future__ import annotations

import pytest
from tests.unit.audit.test_audit_ranges import START, history

from tidemark.audit import cut as module
from tidemark.audit.cut import Cutter
from tidemark.names import TaskId, TopicPartition
from tidemark.topology.builder import Topology

OUT, LOG, DLQ, COMMITS = (TopicPartition(t, 1) for t in ("out", "app-s-changelog", "app-dlq", "app-commits"))


def plan(version):
    topology = Topology("app", version=version)
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
    read = {"later_ms": 0}

    def commits(_client, _ends, _app, _tasks, *, stalled_after_s, from_offsets, end_offsets):
        read.update({"from": from_offsets, "to": end_offsets})
        changed = {"out": {0: 0, 1: 0}, "app-s-changelog": {1: 0}, "app-dlq": {0: 0, 1: 0}}
        for record in [START, *history(1, 3)]:
            ends = {t: dict.fromkeys(ps, 20 * record.batch) for t, ps in changed.items()}
            if from_offsets[COMMITS] == 0:
                at_ms = record.commit_time_ms + read["later_ms"]
                yield module.replace(record, ends_before=ends, commit_time_ms=at_ms)

    monkeypatch.setattr(module, "commit_history", commits)
    monkeypatch.setattr(module, "_QUIET_WAIT_S", 0.001)
    monkeypatch.setattr(module, "_HANGING_WAIT_S", 0.001)

    def cut(brokers, before=None, later_ms=0, version="1", most_batches=100):
        read["later_ms"] = later_ms
        partitions = {"in": 2, "out": 2, "app-s-changelog": 2, "app-dlq": 2, "app-commits": 2}
        cutter = Cutter(plan(version), {}, brokers, partitions, 30, 86_400_000, lambda: START.commit_time_ms)
        return cutter.cut(before or {}, most_batches), read

    return cut


def last(cut):
    return cut.ranges[TaskId(0, 1)].records[-1].batch


def test_should_include_the_newest_batch_of_an_idle_application(cutting):
    cut, read = cutting(Brokers())
    assert last(cut) == 3
    assert cut.ranges.keys() == {TaskId(0, 1)}
    assert {end.waited_ms for end in cut.ends} == {0}
    assert read["from"] == {TopicPartition("app-commits", 0): 0, COMMITS: 0}
    # The next audit reads the commits topic from here on.
    again, read = cutting(Brokers(), {TaskId(0, 1): cut.ranges[TaskId(0, 1)].end})
    assert again.passed_over == []
    assert read["from"][COMMITS] == 500
    assert again.ranges == {}


def test_should_leave_out_the_newest_batch_while_topics_grow(cutting):
    cut, _ = cutting(Brokers(grows=True))
    assert last(cut) == 2
    # It was not the newest, so its commit records are read again.
    assert cut.ranges[TaskId(0, 1)].commits_from == 0


@pytest.mark.parametrize(
    ("brokers", "most", "number"),
    [
        (Brokers(), 1, 3),
        (Brokers(), 3, 1),
        (Brokers(), 4, None),
        (Brokers(grows=True), 2, 1),
        # Only the newest batch is left, which waits for the next audit while something is written.
        (Brokers(grows=True), 3, None),
    ],
)
def test_should_say_how_many_batches_are_left_that_can_be_audited_too(cutting, brokers, most, number):
    cut, _ = cutting(brokers, most_batches=most)
    assert last(cut) == most - 1
    assert cut.left == ({} if number is None else {TaskId(0, 1): number})


def test_should_not_report_a_transaction_as_hanging_when_it_ends(cutting):
    cut, _ = cutting(Brokers(is_open=[OUT]))
    assert [end.partition for end in cut.ends if end.committed_end < end.end] == []


def test_should_name_where_a_transaction_hangs_and_audit_what_comes_before_it(cutting):
    cut, _ = cutting(Brokers(is_open=[OUT, COMMITS], moves=False))
    hanging = {end.partition: end for end in cut.ends if end.committed_end < end.end}
    assert hanging.keys() == {OUT, COMMITS}
    assert hanging[OUT].waited_ms >= 30
    assert (hanging[OUT].committed_end, hanging[OUT].end) == (30, 500)
    assert last(cut) == 0


def test_should_audit_an_application_from_its_start_when_it_began_again_from_nothing(cutting):
    cut, _ = cutting(Brokers())
    end = cut.ranges[TaskId(0, 1)].end
    assert end.commits_from == 500
    # The commits topic was made again, and is shorter than it was.
    shorter, _ = cutting(Brokers(end=100), {TaskId(0, 1): end}, later_ms=60_000)
    assert [record.batch for record in shorter.ranges[TaskId(0, 1)].records] == [0, 1, 2, 3]
    assert shorter.ranges[TaskId(0, 1)].commits_from == 100
    # Of the same length, and read from the beginning, as an audit ended before the newest batch.
    again, _ = cutting(Brokers(), {TaskId(0, 1): module.replace(end, commits_from=0)}, later_ms=60_000)
    assert last(again) == 3


def test_should_read_from_the_beginning_when_batches_after_the_audited_position_are_missing(cutting, monkeypatch):
    cut, _ = cutting(Brokers())
    end = cut.ranges[TaskId(0, 1)].end
    asked = []
    known = module.commit_history

    def grown(*given, from_offsets, **named):
        asked.append(from_offsets[COMMITS])
        if asked[-1]:
            ends = {"out": {0: 180, 1: 180}, "app-s-changelog": {1: 180}, "app-dlq": {0: 180, 1: 180}}
            return [module.replace(record, ends_before=ends) for record in history(9, 9)]
        return [*known(*given, from_offsets=from_offsets, **named)]

    monkeypatch.setattr(module, "commit_history", grown)
    anew, _ = cutting(Brokers(), {TaskId(0, 1): end}, later_ms=60_000)
    assert asked == [500, 0]
    assert anew.ranges[TaskId(0, 1)].records[0].batch == 0
    # A hole in the same life stays a hole, which the expectations see.
    hole, _ = cutting(Brokers(), {TaskId(0, 1): end})
    assert asked == [500, 0, 500, 0]
    assert [record.batch for record in hole.ranges[TaskId(0, 1)].records] == [9]


def test_should_say_which_batches_an_older_topology_wrote(cutting):
    cut, _ = cutting(Brokers(), version="2")
    assert cut.ranges == {}
    (left_out,) = cut.passed_over
    assert (left_out.task, left_out.first_batch, left_out.last_batch) == (TaskId(0, 1), 0, 3)
