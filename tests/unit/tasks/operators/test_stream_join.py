"""The join of two streams: each pair once, at its later row; unmatched rows once, when their window closes.

What Kafka Streams gives for the cases here was taken from its `TopologyTestDriver`, with the emit interval 0.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.operators import Harness

from tidemark.stream_times import StreamTimes
from tidemark.tasks.operators.stream_join import StreamStreamJoinOperator
from tidemark.tasks.operators.unmatched_rows import NEVER_MS
from tidemark.topology.plan import Column, JoinKind, StoreKind, StoreSpec, StreamStreamJoin

ID = Column("id", "STRING")
LEFT, RIGHT = (ID, Column("x", "INT")), (ID, Column("y", "INT"))
BOTH = (ID, Column("x", "INT"), Column("y", "INT"))
GRACE = 3


def a_harness(kind: JoinKind, before: int = 10, after: int = 10, segment_ms: int = 8) -> Harness:
    retention_ms = 2 * max(before, after) + GRACE + 1
    stores = (
        StoreSpec("this", StoreKind.WINDOW, retention_ms, segment_ms, columns=LEFT),
        StoreSpec("other", StoreKind.WINDOW, retention_ms, segment_ms, columns=RIGHT),
        StoreSpec("outer", StoreKind.KEY_VALUE, None, None, columns=BOTH),
    )[: 2 if kind is JoinKind.INNER else 3]
    node = StreamStreamJoin("JOIN", ("L", "R"), BOTH, stores, kind, before, after, GRACE, LEFT, RIGHT)
    return Harness(StreamStreamJoinOperator(node), stores)


def left(k: str, ts: int, x: int) -> dict:
    return {"k": k, "ts": ts, "id": k, "x": x}


def right(k: str, ts: int, y: int) -> dict:
    return {"k": k, "ts": ts, "id": k, "y": y}


def seen(rows: list[dict]) -> list[tuple]:
    return [(r["x"], r["y"], r["ts"]) for r in rows]


def test_should_emit_nothing_for_no_rows():
    for kind in JoinKind:
        assert a_harness(kind).batch([[], []], -1, -1) == []
        assert a_harness(kind).batch([[], []], -1, 1000) == []


@pytest.mark.parametrize(("distance", "pairs"), [(-6, 0), (-5, 1), (0, 1), (9, 1), (10, 1), (11, 0)])
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_should_pair_rows_within_before_and_after_inclusive(distance, pairs, in_one_batch):
    harness = a_harness(JoinKind.INNER, before=5, after=10)
    lefts, rights = [left("a", 20, 1)], [right("a", 20 + distance, 2)]
    batches = [[lefts, rights]] if in_one_batch else [[lefts, []], [[], rights]]
    assert sum(len(harness.batch(batch)) for batch in batches) == pairs


def test_should_emit_a_pair_at_its_later_row_with_the_newer_timestamp():
    harness = a_harness(JoinKind.INNER)
    harness.batch([[left("a", 5, 1)], []])
    (pair,) = harness.batch([[], [right("a", 3, 2) | {"seq": 7}]])
    assert pair == {"k": "a", "ts": 5, "seq": 7, "deleted": False, "id": "a", "x": 1, "y": 2}


def test_should_order_the_pairs_of_a_row_by_the_partners_time_then_arrival():
    harness = a_harness(JoinKind.INNER)
    harness.batch([[left("a", 5, 1), left("a", 5, 2)], []])
    harness.batch([[left("a", 5, 3), left("a", 2, 4)], []])
    new = [left("a", 5, 5) | {"seq": 0}, left("a", 1, 6) | {"seq": 1}]
    pairs = harness.batch([new, [right("a", 6, 0) | {"seq": 2}]])
    assert [p["x"] for p in pairs] == [6, 4, 1, 2, 3, 5]
    assert {p["seq"] for p in pairs} == {2}


def test_should_process_the_left_side_first_when_both_have_the_same_sequence_number():
    lefts = [left("a", 9, 1) | {"seq": 0}, left("a", 3, 2) | {"seq": 0}]
    pairs = a_harness(JoinKind.INNER).batch([lefts, [right("a", 5, 7) | {"seq": 0}]])
    assert [p["x"] for p in pairs] == [2, 1]


def test_should_keep_every_row_of_equal_key_and_timestamp():
    harness = a_harness(JoinKind.INNER)
    for x in range(3):
        harness.batch([[left("a", 5, x), left("a", 5, x)], []])
    assert len(harness.contents("this")) == 6
    assert [p["x"] for p in harness.batch([[], [right("a", 5, 9)]])] == [0, 0, 1, 1, 2, 2]


def test_should_not_mistake_a_key_for_another_that_begins_with_it():
    harness = a_harness(JoinKind.INNER)
    keys = ["", "\0", "a", "a\0", "a\0\0\0\0\0\0\0\5", "a" + "\0" * 20, "é"]
    harness.batch([[left(k, 5, i) for i, k in enumerate(keys)], []])
    pairs = harness.batch([[], [right(k, 5, i) for i, k in enumerate(keys)]])
    assert seen(pairs) == [(i, i, 5) for i in range(len(keys))]


def test_should_end_the_stored_keys_with_the_timestamp_that_gives_a_restore_the_segment():
    harness = a_harness(JoinKind.INNER, segment_ms=8)
    harness.batch([[left("a", 7, 1), left("a", 8, 2), left("b", 23, 3)], []])
    store = harness.stores["this"]
    assert store.segments() == [0, 1, 2]
    for segment in store.segments():
        assert [int.from_bytes(key[-8:], "big") // 8 for key, _ in store.items(segment)] == [segment]


def one_by_one(harness: Harness, *records: dict) -> list[list[tuple]]:
    """What each record gives when it is a batch of its own; a record with `x` is the left's."""
    given, stream_time = [], -1
    for record in records:
        before, stream_time = stream_time, max(stream_time, record["ts"])
        given.append(seen(harness.batch([[record], []] if "x" in record else [[], [record]], before, stream_time)))
        harness.op = StreamStreamJoinOperator(harness.op.node)
    return given


def at_once(harness: Harness, *records: dict) -> list[tuple]:
    """What the records give in one batch, in the order given."""
    inputs: list[list[dict]] = [[], []]
    for seq, record in enumerate(records):
        inputs["x" not in record].append(record | {"seq": seq})
    return seen(harness.batch(inputs, -1, max(record["ts"] for record in records)))


def test_should_emit_a_row_without_partner_before_newer_pairs():
    records = [left("a", 0, 1), left("a", 200, 2), right("a", 200, 3)]
    assert one_by_one(a_harness(JoinKind.LEFT), *records) == [[], [(1, None, 0)], [(2, 3, 200)]]
    assert at_once(a_harness(JoinKind.LEFT), *records) == [(1, None, 0), (2, 3, 200)]


@pytest.mark.parametrize(("newest", "expected"), [(18, []), (19, [(1, None, 5)])])
def test_should_emit_a_row_without_partner_when_stream_time_is_past_its_window_and_grace(newest, expected):
    harness = a_harness(JoinKind.LEFT)
    assert one_by_one(harness, left("a", 5, 1), right("b", newest, 2)) == [[], expected]
    assert len(harness.contents("outer")) == 1 - len(expected)


def test_should_emit_a_row_without_partner_at_the_next_record_after_a_rescale():
    behind, ahead = a_harness(JoinKind.LEFT), a_harness(JoinKind.LEFT)
    one_by_one(behind, left("a", 100, 1))
    one_by_one(ahead, left("b", 990, 2), left("b", 1000, 3))
    times = [StreamTimes(ts, {}, harness.marks) for ts, harness in ((100, behind), (1000, ahead))]
    behind.marks = dict(StreamTimes.newest(times, ["this", "other"]).marks)
    assert seen(behind.batch([[left("c", 1001, 4)], []], 1000, 1001)) == [(1, None, 100)]


def test_should_emit_nothing_when_only_wall_clock_time_has_passed():
    harness = a_harness(JoinKind.LEFT)
    harness.batch([[left("a", 5, 1)], []], -1, 5)
    assert harness.batch([[], []], 5, 1000) == []


def test_should_hold_a_closed_row_back_until_the_rows_of_the_previous_check_have_closed():
    keys = zip("abcdefg", (0, 5, 14, 18, 19, 30, 32), strict=True)
    records = [left(k, ts, x) for x, (k, ts) in enumerate(keys, start=1)]
    expected = [[], [], [(1, None, 0)], [], [(2, None, 5)], [], [(3, None, 14), (4, None, 18)]]
    assert one_by_one(a_harness(JoinKind.LEFT), *records) == expected
    assert at_once(a_harness(JoinKind.LEFT), *records) == [row for rows in expected for row in rows]


def test_should_close_the_left_by_the_time_after_it_and_the_right_by_the_time_before_it():
    harness = a_harness(JoinKind.OUTER, before=2, after=10)
    records = [left("a", 5, 1), right("b", 5, 2), right("c", 11, 3), right("c", 19, 4)]
    assert one_by_one(harness, *records) == [[], [], [(None, 2, 5)], [(1, None, 5), (None, 3, 11)]]


def test_should_emit_closed_rows_by_time_then_the_right_then_key_then_arrival():
    keys = ["b", "a\0", "a"]
    records = [left(k, 5, 10 * n + i) for i in range(2) for n, k in enumerate(keys)] + [
        right("z", 5, 7),
        right("y", 4, 8),
    ]
    given = at_once(a_harness(JoinKind.OUTER), *records, left("x", 50, 99))
    assert given == [(None, 8, 4), (None, 7, 5), *((x, None, 5) for x in (20, 21, 10, 11, 0, 1))]


def test_should_give_a_right_row_without_partner_its_own_value_of_a_shared_column():
    harness = a_harness(JoinKind.OUTER)
    (row,) = harness.batch([[left("a", 100, 1)], [right("b", 5, 2)]], -1, 100)
    assert row == {"k": "b", "ts": 5, "seq": 1, "deleted": False, "id": "b", "x": None, "y": 2}


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.OUTER])
def test_should_not_emit_a_row_as_unmatched_when_its_partner_arrives_in_the_same_batch_or_later(kind):
    harness = a_harness(kind)
    harness.batch([[left("a", 5, 1)], []], -1, 5)
    rows = harness.batch([[left("b", 6, 3)], [right("a", 6, 2), right("b", 6, 4), right("c", 99, 5)]], 5, 99)
    assert sorted(seen(rows)) == [(1, 2, 6), (3, 4, 6)]
    assert len(harness.contents("outer")) == (kind is JoinKind.OUTER)


def test_should_log_neither_an_unmatched_row_that_is_closed_at_once_nor_a_deletion_of_an_absent_key():
    harness = a_harness(JoinKind.LEFT)
    harness.batch([[left("a", 5, 1), left("b", 5, 1)], [right("a", 5, 2), right("z", 99, 3)]], -1, 99)
    assert harness.written["outer"] == {}
    harness.batch([[left("a", 99, 3)], [right("a", 99, 4)]], 99, 99)
    assert harness.written["outer"] == {}


@pytest.mark.parametrize(("ts", "waits"), [(89, False), (90, True)])
def test_should_emit_a_late_row_without_partner_at_once_when_its_window_is_over(ts, waits):
    harness = a_harness(JoinKind.LEFT)
    assert one_by_one(harness, right("z", 100, 1), left("a", ts, 2)) == [[], [] if waits else [(2, None, ts)]]
    assert len(harness.contents("outer")) == waits


@pytest.mark.parametrize(("ts", "pairs"), [(76, []), (77, []), (78, [(2, 1, 78)])])
def test_should_join_a_late_row_with_what_the_other_store_still_holds(ts, pairs):
    # 23 ms of the newest row that the other side brought: the window both ways and the grace.
    harness = a_harness(JoinKind.INNER)
    assert one_by_one(harness, right("a", ts, 1), right("z", 100, 0), left("a", 70, 2))[2] == pairs


def test_should_expire_each_sides_store_by_the_newest_row_of_that_side():
    harness = a_harness(JoinKind.INNER)
    given = one_by_one(harness, right("a", 5, 1), left("z", 100_000, 2), left("a", 5, 3), right("a", 5, 4))
    # The left store's newest row is far ahead, so that it did not even keep the late one.
    assert given == [[], [], [(3, 1, 5)], []]
    assert harness.marks == {"this": 100_000, "other": 5}


@pytest.mark.parametrize(("ts", "late"), [(76, 1), (77, 0)])
def test_should_count_a_row_as_late_that_joined_nothing_and_was_not_kept(ts, late):
    harness = a_harness(JoinKind.LEFT)
    one_by_one(harness, right("a", 100, 1), right("a", ts, 2), left("a", ts, 3))
    assert harness.late_rows == late


@pytest.mark.parametrize(("kind", "expected"), [
    (JoinKind.INNER, []), (JoinKind.LEFT, [(1, None, 5)]), (JoinKind.OUTER, [(1, None, 5), (None, 2, 6)]),
])  # fmt: skip
def test_should_emit_a_row_without_a_key_at_once_on_the_outer_side(kind, expected):
    harness = a_harness(kind)
    records = [left("a", 5, 1) | {"k": None}, right("a", 6, 2) | {"k": None}]
    assert at_once(harness, *records) == expected
    assert all(harness.contents(store) == {} for store in harness.stores)
    assert harness.batch([[records[0]], []])[:1] == ([] if kind is JoinKind.INNER else [
        {"k": None, "ts": 5, "seq": 0, "deleted": False, "id": "a", "x": 1, "y": None}
    ])  # fmt: skip


def test_should_advance_the_times_of_the_join_and_of_the_store_with_a_row_without_a_value():
    harness = a_harness(JoinKind.LEFT)
    gone = right("a", 100, 0) | {"deleted": True, "y": None}
    given = one_by_one(harness, left("a", 5, 1), gone, left("a", 50, 2), left("a", 100, 3))
    assert given == [[], [], [(2, None, 50)], [(1, None, 5)]]
    assert harness.marks["other"] == 100


class Model:
    """The join record by record, as `KStreamKStreamJoin` goes about it, keeping everything for ever."""

    def __init__(self, kind: JoinKind, before: int, after: int) -> None:
        self.outer = {JoinKind.INNER: (), JoinKind.LEFT: (0,), JoinKind.OUTER: (0, 1)}[kind]
        self.reach = ((before, after), (after, before))
        self.retention = before + after + GRACE
        self.rows, self.waiting = ([], []), []
        self.newest, self.stream, self.look = [-1, -1], -1, NEVER_MS

    def take(self, side: int, row: dict) -> list[tuple]:
        ts, key, (before, after) = row["ts"], row["k"], self.reach[side]
        self.stream = max(self.stream, ts)
        if row.get("deleted"):
            # KStreamJoinWindow puts a null value into the store, but nothing without a key.
            if key is not None:
                self.newest[side] = max(self.newest[side], row["ts"])
            return []
        if key is None:
            return [self.alone(side, row)] if side in self.outer else []
        given = self.closed(after) if self.outer and ts == self.stream else []
        oldest = max(ts - before, self.newest[1 - side] - self.retention + 1)
        partners = [p for p in self.rows[1 - side] if p["k"] == key and oldest <= p["ts"] <= ts + after]
        for partner in sorted(partners, key=lambda p: p["ts"]):
            one, other = (row, partner) if side == 0 else (partner, row)
            given.append((one["x"], other["y"], max(ts, partner["ts"])))
            self.waiting = [w for w in self.waiting if w[3] is not partner]
        if side in self.outer and not partners:
            if ts + after < self.stream:
                given.append(self.alone(side, row))
            else:
                self.look = min(self.look, ts)
                self.waiting.append((ts, 1 - side, key.encode(), row))
                self.waiting.sort(key=lambda w: w[:3])
        self.newest[side] = max(self.newest[side], ts)
        self.rows[side].append(row)
        return given

    def closed(self, after: int) -> list[tuple]:
        if self.look != NEVER_MS and self.look + after + GRACE >= self.stream:
            return []
        self.look, is_open, gone = NEVER_MS, set(), []
        for waiting in self.waiting:
            self.look, side = waiting[0], 1 - waiting[1]
            if len(is_open) == 2:
                break
            if self.look + self.reach[side][1] + GRACE >= self.stream:
                is_open.add(side)
            else:
                gone.append(waiting)
        self.waiting = [w for w in self.waiting if not any(w is g for g in gone)]
        return [self.alone(1 - w[1], w[3]) for w in gone]

    def alone(self, side: int, row: dict) -> tuple:
        return (row.get("x"), row.get("y"), row["ts"])


ROW = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["a", "a\0", "b", None]),
    st.integers(-30, 6),
    st.integers(0, 9),
    st.integers(0, 20),
)


@settings(deadline=None)
@given(
    st.lists(ROW, max_size=25),
    st.sets(st.integers(1, 24)),
    st.sampled_from(JoinKind),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([1, 8, 60]),
)
def test_should_join_the_same_as_record_by_record_for_any_division_into_batches(
    steps, cuts, kind, before, after, segment_ms
):
    """Uses rows around the stream time with distinct numbers, one in ten without a value."""
    model, harness = Model(kind, before, after), a_harness(kind, before, after, segment_ms)
    now, stream_time, expected, given = 0, -1, [], []
    batch: list[list[dict]] = [[], []]
    for n, (side, key, offset, tenth, advance) in enumerate(steps):
        row = (right if side else left)(key, max(now + offset, 0), n) | {"seq": n, "deleted": tenth == 0}
        now += advance
        expected += model.take(side, row)
        batch[side].append(row)
        if n + 1 in cuts or n + 1 == len(steps):
            newest = max([stream_time, *(r["ts"] for rows in batch for r in rows)])
            given += seen(harness.batch(batch, stream_time, newest))
            stream_time, batch = newest, [[], []]
            harness.op = StreamStreamJoinOperator(harness.op.node)
    assert given == expected
