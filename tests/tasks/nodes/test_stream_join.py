"""The join of two streams: each pair once, at its later row; rows that stay alone once, when their window closes (rule 20)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.nodes.harness import Harness, numbered

from tidemark.tasks.nodes.stream_join import StreamStreamJoinOperator
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


def test_should_emit_nothing_from_nothing():
    for kind in JoinKind:
        assert a_harness(kind).batch([[], []], -1, -1) == []
        assert a_harness(kind).batch([[], []], -1, 1000) == []


@pytest.mark.parametrize(("distance", "pairs"), [(-6, 0), (-5, 1), (0, 1), (9, 1), (10, 1), (11, 0)])
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_should_pair_rows_from_before_to_after_both_included(distance, pairs, in_one_batch):
    harness = a_harness(JoinKind.INNER, before=5, after=10)
    lefts, rights = [left("a", 20, 1)], [right("a", 20 + distance, 2)]
    batches = [[lefts, rights]] if in_one_batch else [[lefts, []], [[], rights]]
    assert sum(len(harness.batch(batch)) for batch in batches) == pairs


def test_should_emit_a_pair_at_its_later_row_with_the_newer_timestamp():
    harness = a_harness(JoinKind.INNER)
    harness.batch([[left("a", 5, 1)], []])
    (pair,) = harness.batch([[], [right("a", 3, 2) | {"seq": 7}]])
    assert pair == {"k": "a", "ts": 5, "seq": 7, "deleted": False, "id": "a", "x": 1, "y": 2}


def test_should_order_the_pairs_of_a_row_by_their_partners_time_then_arrival():
    harness = a_harness(JoinKind.INNER)
    harness.batch([[left("a", 5, 1), left("a", 5, 2)], []])
    harness.batch([[left("a", 5, 3), left("a", 2, 4)], []])
    new = [left("a", 5, 5) | {"seq": 0}, left("a", 1, 6) | {"seq": 1}]
    pairs = harness.batch([new, [right("a", 6, 0) | {"seq": 2}]])
    assert [p["x"] for p in pairs] == [6, 4, 1, 2, 3, 5]
    assert {p["seq"] for p in pairs} == {2}


def test_should_take_the_left_first_where_both_sides_have_one_sequence_number():
    lefts = [left("a", 9, 1) | {"seq": 0}, left("a", 3, 2) | {"seq": 0}]
    pairs = a_harness(JoinKind.INNER).batch([lefts, [right("a", 5, 7) | {"seq": 0}]])
    assert [p["x"] for p in pairs] == [2, 1]


def test_should_keep_every_row_of_equal_key_and_timestamp():
    harness = a_harness(JoinKind.INNER)
    for x in range(3):
        harness.batch([[left("a", 5, x), left("a", 5, x)], []])
    assert len(harness.contents("this")) == 6
    assert [p["x"] for p in harness.batch([[], [right("a", 5, 9)]])] == [0, 0, 1, 1, 2, 2]


def test_should_not_take_a_key_for_another_that_begins_with_it():
    harness = a_harness(JoinKind.INNER)
    keys = ["", "\0", "a", "a\0", "a\0\0\0\0\0\0\0\5", "a" + "\0" * 20, "é"]
    harness.batch([[left(k, 5, i) for i, k in enumerate(keys)], []])
    pairs = harness.batch([[], [right(k, 5, i) for i, k in enumerate(keys)]])
    assert seen(pairs) == [(i, i, 5) for i in range(len(keys))]


def test_should_end_the_keys_of_kept_rows_with_the_timestamp_from_which_a_restore_finds_the_segment():
    harness = a_harness(JoinKind.INNER, segment_ms=8)
    harness.batch([[left("a", 7, 1), left("a", 8, 2), left("b", 23, 3)], []])
    store = harness.stores["this"]
    assert store.segments() == [0, 1, 2]
    for segment in store.segments():
        assert [int.from_bytes(key[-8:], "big") // 8 for key, _ in store.items(segment)] == [segment]


@pytest.mark.parametrize(("stream_time", "late"), [(17, 0), (18, 0), (19, 1)])
def test_should_drop_and_count_rows_past_the_window_and_grace(stream_time, late):
    harness = a_harness(JoinKind.LEFT, before=5, after=10)
    harness.batch([[left("a", 5, 1)], [right("a", 5, 2)]], stream_time, stream_time)
    assert harness.late_rows == 2 * late
    assert len(harness.contents("this")) == len(harness.contents("other")) == 1 - late


@pytest.mark.parametrize(("stream_time", "expected"), [(18, []), (19, [(1, None, 5)])])
def test_should_emit_a_row_that_stays_alone_when_stream_time_is_past_its_window_and_grace(stream_time, expected):
    harness = a_harness(JoinKind.LEFT)
    assert harness.batch([[left("a", 5, 1)], [right("b", 5, 2)]], -1, 5) == []
    assert seen(harness.batch([[], []], 5, stream_time)) == expected
    assert harness.batch([[], []], stream_time, stream_time) == []
    assert len(harness.contents("outer")) == 1 - len(expected)


def test_should_close_the_left_by_the_time_after_it_and_the_right_by_the_time_before_it():
    harness = a_harness(JoinKind.OUTER, before=2, after=10)
    harness.batch([[left("a", 5, 1)], [right("b", 5, 2)]], -1, 5)
    assert seen(harness.batch([[], []], 5, 11)) == [(None, 2, 5)]
    assert seen(harness.batch([[], []], 11, 19)) == [(1, None, 5)]


def test_should_give_a_right_row_that_stays_alone_its_own_value_of_a_shared_column():
    harness = a_harness(JoinKind.OUTER)
    (row,) = harness.batch([[], [right("b", 5, 2)]], -1, 100)
    assert row == {"k": "b", "ts": 5, "seq": 1, "deleted": False, "id": "b", "x": None, "y": 2}


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.OUTER])
def test_should_not_emit_a_row_alone_whose_partner_came_in_the_same_batch_or_later(kind):
    harness = a_harness(kind)
    harness.batch([[left("a", 5, 1)], []], -1, 5)
    rows = harness.batch([[left("b", 6, 3)], [right("a", 6, 2), right("b", 6, 4)]], 5, 99)
    assert seen(rows) == [(1, 2, 6), (3, 4, 6)]
    assert harness.contents("outer") == {}


def test_should_log_neither_a_row_that_is_alone_and_closed_at_once_nor_a_deletion_of_what_is_not_there():
    harness = a_harness(JoinKind.OUTER)
    harness.batch([[left("a", 5, 1)], [right("a", 5, 2), right("b", 5, 3)]], -1, 99)
    assert harness.written["outer"] == {}
    harness = a_harness(JoinKind.OUTER)
    harness.batch([[left("a", 5, 1)], [right("a", 5, 2)]], -1, 5)
    harness.batch([[left("a", 6, 3)], []], 5, 6)
    assert harness.written["outer"] == {}


class Model:
    """The join record by record, keeping everything for ever."""

    def __init__(self, kind: JoinKind, before: int, after: int) -> None:
        self.kind, self.before, self.after = kind, before, after
        self.rows, self.alone, self.late = ([], []), [], 0

    def batch(self, inputs: list[list[dict]], start: int, end: int) -> tuple[list[tuple], list[tuple]]:
        flat = [(row["seq"], side, row) for side, rows in enumerate(numbered(inputs)) for row in rows]
        pairs = []
        for _, side, row in sorted(flat, key=lambda one: one[:2]):
            if row["ts"] + max(self.before, self.after) + GRACE < start:
                self.late += 1
                continue
            partners = [p for p in self.rows[1 - side] if p["k"] == row["k"] and self.near(side, row, p)]
            for partner in sorted(partners, key=lambda p: p["ts"]):
                one, other = (row, partner) if side == 0 else (partner, row)
                pairs.append((one["x"], other["y"], max(one["ts"], other["ts"])))
            self.rows[side].append(row)
            self.alone = [a for a in self.alone if not any(a[1] is p for p in partners)]
            if not partners and (self.kind is JoinKind.OUTER or (self.kind is JoinKind.LEFT and side == 0)):
                self.alone.append((row["ts"] + (self.before if side else self.after) + GRACE, row))
        closed = [row for close, row in self.alone if close < end]
        self.alone = [(close, row) for close, row in self.alone if close >= end]
        return pairs, [(row.get("x"), row.get("y"), row["ts"]) for row in closed]

    def near(self, side: int, row: dict, partner: dict) -> bool:
        distance = (partner["ts"] - row["ts"]) * (1 if side == 0 else -1)
        return -self.before <= distance <= self.after


def split_alone(rows: list[dict]) -> tuple[list[tuple], list[tuple]]:
    alone = [r["x"] is None or r["y"] is None for r in rows]
    assert alone == sorted(alone)
    return seen(rows[: len(rows) - sum(alone)]), seen(rows[len(rows) - sum(alone) :])


def by_text(rows: list[tuple]) -> list[tuple]:
    return sorted(rows, key=str)


ROW = st.tuples(st.sampled_from(["a", "a\0"]), st.integers(-30, 6))
STEPS = st.lists(st.tuples(st.lists(ROW, max_size=5), st.lists(ROW, max_size=5), st.integers(0, 20)), max_size=6)


def as_inputs(lefts, rights, stream_time: int, first: int) -> list[list[dict]]:
    """Rows around the stream time, each with a number of its own as its value."""
    base = max(stream_time, 0)
    return [
        [left(k, max(base + t, 0), first + i) for i, (k, t) in enumerate(lefts)],
        [right(k, max(base + t, 0), first + 100 + i) for i, (k, t) in enumerate(rights)],
    ]


@settings(deadline=None)
@given(STEPS, st.sampled_from(JoinKind), st.integers(0, 12), st.integers(0, 12), st.sampled_from([1, 8, 60]))
def test_should_join_two_streams_as_record_by_record(steps, kind, before, after, segment_ms):
    harness, model = a_harness(kind, before, after, segment_ms), Model(kind, before, after)
    stream_time = -1
    for number, (lefts, rights, advance) in enumerate(steps):
        inputs = as_inputs(lefts, rights, stream_time, 1000 * number)
        start, stream_time = stream_time, max(stream_time, 0) + advance
        pairs, alone = split_alone(harness.batch(inputs, start, stream_time))
        expected_pairs, expected_alone = model.batch(inputs, start, stream_time)
        assert pairs == expected_pairs
        assert by_text(alone) == by_text(expected_alone)
        assert harness.late_rows == model.late
        harness.op = StreamStreamJoinOperator(harness.op.node)


@settings(deadline=None)
@given(STEPS, st.sampled_from(JoinKind), st.integers(0, 12), st.data())
def test_should_emit_the_same_however_the_records_are_split_into_batches(steps, kind, within, data):
    whole, split = a_harness(kind, within, within), a_harness(kind, within, within)
    stream_time = -1
    for number, (lefts, rights, advance) in enumerate(steps):
        inputs = numbered(as_inputs(lefts, rights, stream_time, 1000 * number))
        start, stream_time = stream_time, max(stream_time, 0) + advance
        cut = data.draw(st.integers(0, 10))
        first = split.batch([[r for r in rows if r["seq"] < cut] for rows in inputs], start, start)
        split.op = StreamStreamJoinOperator(split.op.node)
        second = split.batch([[r for r in rows if r["seq"] >= cut] for rows in inputs], start, stream_time)
        assert seen(first + second) == seen(whole.batch(inputs, start, stream_time))
        for store in whole.stores:
            assert whole.contents(store) == split.contents(store)
