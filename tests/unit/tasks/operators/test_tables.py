"""Tables and lookups in them: each record finds the row of its own position, within and across batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.operators import Harness, numbered

from tidemark.tasks.operators.tables import StreamTableJoinOperator, TableSourceOperator, TableTableJoinOperator
from tidemark.topology.plan import (
    Column,
    JoinKind,
    StoreKind,
    StoreSpec,
    StreamTableJoin,
    TableSource,
    TableTableJoin,
)  # fmt: skip

ID = Column("id", "STRING")
LEFT, RIGHT = (ID, Column("x", "INT")), (Column("ID", "STRING"), Column("y", "INT"))
BOTH = (ID, Column("x", "INT"), Column("y", "INT"))
LEFT_STORE = StoreSpec("lefts", StoreKind.KEY_VALUE, None, None, columns=LEFT)
RIGHT_STORE = StoreSpec("rights", StoreKind.KEY_VALUE, None, None, columns=RIGHT)
LEFT_TABLE = TableSource("LEFT", ("in",), LEFT, (LEFT_STORE,))
RIGHT_TABLE = TableSource("RIGHT", ("in",), RIGHT, (RIGHT_STORE,))


def a_table() -> Harness:
    return Harness(TableSourceOperator(LEFT_TABLE), [LEFT_STORE])


def stream_table(kind: JoinKind) -> Harness:
    node = StreamTableJoin("JOIN", ("in", "RIGHT"), BOTH, (), kind, RIGHT_STORE, LEFT, RIGHT)
    return Harness(StreamTableJoinOperator(node), [RIGHT_STORE], upstream={1: TableSourceOperator(RIGHT_TABLE)})


def table_table(kind: JoinKind) -> Harness:
    node = TableTableJoin("JOIN", ("LEFT", "RIGHT"), BOTH, (), kind, LEFT_STORE, RIGHT_STORE, LEFT, RIGHT)
    upstream = {0: TableSourceOperator(LEFT_TABLE), 1: TableSourceOperator(RIGHT_TABLE)}
    return Harness(TableTableJoinOperator(node), [LEFT_STORE, RIGHT_STORE], upstream=upstream)


def left(k: str, x: int | None, ts: int = 0) -> dict:
    return {"k": k, "ts": ts, "id": k, "x": x} if x is not None else {"k": k, "ts": ts, "deleted": True}


def right(k: str, y: int | None, ts: int = 0) -> dict:
    return {"k": k, "ts": ts, "ID": k, "y": y} if y is not None else {"k": k, "ts": ts, "deleted": True}


def seen(rows: list[dict]) -> list[tuple]:
    return [(r["k"], "deleted") if r["deleted"] else (r["k"], r["x"], r["y"]) for r in rows]


def test_should_emit_every_update_of_a_table_in_order_and_keep_the_last_of_each_key():
    table = a_table()
    rows = table.batch([[left("b", 1), left("a", 2), left("b", 3)]])
    assert [(r["k"], r["x"], r["seq"]) for r in rows] == [("b", 1, 0), ("a", 2, 1), ("b", 3, 2)]
    assert table.contents("lefts") == {b"a": b'{"id":"a","x":2,"__ts":0}', b"b": b'{"id":"b","x":3,"__ts":0}'}


def test_should_keep_the_last_row_of_a_key_by_sequence_even_when_it_is_older():
    for cut in (False, True):
        table, rows = a_table(), [left("a", 1, ts=100), left("a", 2, ts=50)]
        given = table.batch([rows[:1]]) + table.batch([rows[1:]]) if cut else table.batch([rows])
        assert [(r["x"], r["ts"]) for r in given] == [(1, 100), (2, 50)]
        assert table.contents("lefts") == {b"a": b'{"id":"a","x":2,"__ts":50}'}


def test_should_emit_deletions_of_absent_keys_too():
    table = a_table()
    table.batch([[left("a", 1)]])
    rows = table.batch([[left("b", None), left("a", None), left("a", None), left("c", 1), left("c", None)]])
    assert [(r["k"], r["deleted"]) for r in rows] == [
        ("b", True), ("a", True), ("a", True), ("c", False), ("c", True)
    ]  # fmt: skip
    assert table.contents("lefts") == {}


def test_should_ignore_a_row_of_a_table_without_a_key():
    table = a_table()
    assert table.batch([[left("a", 1) | {"k": None}]]) == []
    assert table.contents("lefts") == {}


def test_should_not_log_a_deletion_of_a_key_that_was_never_stored():
    table = a_table()
    table.batch([[left("b", None), left("c", 1), left("c", None)]])
    assert table.written["lefts"] == {}


def test_should_emit_nothing_for_no_rows():
    assert a_table().batch([[]]) == []
    assert stream_table(JoinKind.LEFT).batch([[], []]) == []
    assert stream_table(JoinKind.LEFT).batch([[], [right("a", 1)]]) == []
    assert table_table(JoinKind.OUTER).batch([[], []]) == []


@pytest.mark.parametrize(("kind", "expected"), [
    (JoinKind.INNER, [("a", 2, 7), ("a", 3, 8)]),
    (JoinKind.LEFT, [("a", 1, None), ("a", 2, 7), ("a", 3, 8), ("a", 4, None)]),
])  # fmt: skip
def test_should_join_a_record_with_the_table_as_of_its_place_in_the_batch(kind, expected):
    stream = [left("a", 1, 0), left("a", 2, 2), left("a", 3, 4), left("a", 4, 6)]
    table = [right("a", 7, 1), right("a", 8, 3), right("a", None, 5)]
    harness = stream_table(kind)
    rows = harness.batch([stream, table])
    assert seen(rows) == expected
    assert all(r["ts"] == 2 * (r["x"] - 1) == r["seq"] and r["id"] == "a" for r in rows)


def test_should_join_with_the_committed_row_before_the_tables_first_update_in_the_batch():
    harness = stream_table(JoinKind.LEFT)
    harness.batch([[], [right("a", 7)]])
    assert seen(harness.batch([[left("a", 1, 0), left("a", 2, 9)], [right("a", 8, 5)]])) == [("a", 1, 7), ("a", 2, 8)]


def test_should_take_a_shared_column_from_the_left_or_when_null_from_the_right():
    harness = stream_table(JoinKind.LEFT)
    stream = [{"k": "a", "ts": 0, "id": None, "x": 1}, {"k": "a", "ts": 0, "id": "mine", "x": 1}]
    assert [r["id"] for r in harness.batch([stream, [right("a", 7) | {"seq": -1}]])] == ["a", "mine"]


@pytest.mark.parametrize(("kind", "expected"), [
    (JoinKind.INNER, []), (JoinKind.LEFT, [("a", 1, None), ("null", 1, None)]),
])  # fmt: skip
def test_should_join_a_record_without_a_key_with_nothing(kind, expected):
    harness = stream_table(kind)
    rows = harness.batch([[left("a", 1), left("null", 1) | {"k": None}], [right("", 7, ts=-1)]])
    assert [("null" if r["k"] is None else r["k"], r["x"], r["y"]) for r in rows] == expected


def test_should_delete_a_result_only_when_the_other_side_has_a_row():
    harness = table_table(JoinKind.INNER)
    assert harness.batch([[left("a", 1)], []]) == []
    assert harness.batch([[left("a", None)], []]) == []
    assert seen(harness.batch([[left("a", 2)], [right("a", 7, ts=1)]])) == [("a", 2, 7)]
    (deleted,) = harness.batch([[], [right("a", None)]])
    assert (deleted["deleted"], deleted["id"], deleted["x"], deleted["y"]) == (True, None, None, None)
    # Of a key that is not there too.
    assert seen(harness.batch([[], [right("a", None)]])) == [("a", "deleted")]
    assert harness.batch([[left("a", None)], []]) == []


@pytest.mark.parametrize("cut", [False, True])
def test_should_give_the_joined_row_the_newer_timestamp_of_both_sides(cut):
    harness, lefts, rights = table_table(JoinKind.LEFT), [left("a", 1, ts=9)], [right("a", 7, ts=3)]
    if cut:
        harness.batch([lefts, []])
        (joined,) = harness.batch([[], rights])
    else:
        (_, joined) = harness.batch([[lefts[0] | {"seq": 0}], [rights[0] | {"seq": 1}]])
    assert joined["ts"] == 9


def joined_as_kafka_streams(kind: JoinKind, side: int, own: tuple, other: tuple | None) -> bool | None:
    """Whether a row (True), a deletion (False) or nothing (None) is handed on. `own`: the side's row before and now."""
    was, now = own
    if kind is JoinKind.INNER:
        return None if other is None else now is not None
    if kind is JoinKind.LEFT and side == 1:
        return None if other is None else True
    if other is None and was is None and now is None:
        return None
    return now is not None or (kind is JoinKind.OUTER and other is not None)


UPDATE = st.tuples(st.sampled_from(["a", "b", "a\0", "é"]), st.integers(0, 9) | st.none(), st.integers(0, 5))
BATCHES = st.lists(st.tuples(st.lists(UPDATE, max_size=6), st.lists(UPDATE, max_size=6)), max_size=4)


def in_order(inputs: list[list[dict]]) -> list[tuple[int, dict]]:
    flat = [(row["seq"], side, row) for side, rows in enumerate(numbered(inputs)) for row in rows]
    return [(side, row) for _, side, row in sorted(flat, key=lambda one: one[0])]


@settings(deadline=None)
@given(BATCHES, st.sampled_from([JoinKind.INNER, JoinKind.LEFT]))
def test_should_join_a_stream_with_a_table_the_same_as_record_by_record(batches, kind):
    harness, table = stream_table(kind), {}
    for lefts, rights in batches:
        inputs = [[left(k, x, ts) for k, x, ts in lefts], [right(k, y, ts) for k, y, ts in rights]]
        expected = []
        for side, row in in_order(inputs):
            if side == 1:
                table[row["k"]] = row.get("y")
            elif not row.get("deleted") and (kind is JoinKind.LEFT or table.get(row["k"]) is not None):
                expected.append((row["k"], row["x"], table.get(row["k"])))
        assert seen(harness.batch(inputs)) == expected
        harness.op = StreamTableJoinOperator(harness.op.node)


@settings(deadline=None)
@given(BATCHES, st.sampled_from(JoinKind))
def test_should_join_two_tables_the_same_as_record_by_record(batches, kind):
    harness, tables = table_table(kind), ({}, {})
    for lefts, rights in batches:
        inputs = [[left(k, x, ts) for k, x, ts in lefts], [right(k, y, ts) for k, y, ts in rights]]
        expected = []
        for side, row in in_order(inputs):
            key, own, was = row["k"], tables[side], tables[side].get(row["k"])
            own.pop(key, None) if row.get("deleted") else own.update({key: row})
            one, other = tables[0].get(key), tables[1].get(key)
            given = joined_as_kafka_streams(kind, side, (was, own.get(key)), (other, one)[side])
            at = max([row["ts"], *(r["ts"] for r in [(other, one)[side]] if r)])
            if given is not None:
                expected.append(((key, one and one["x"], other and other["y"]) if given else (key, "deleted"), at))
        rows = harness.batch(inputs)
        assert list(zip(seen(rows), (r["ts"] for r in rows), strict=True)) == expected
        assert all(r["id"] == r["k"] for r in rows if not r["deleted"])
        harness.op = TableTableJoinOperator(harness.op.node)


@settings(deadline=None)
@given(st.lists(UPDATE, max_size=12), st.integers(0, 12))
def test_should_keep_and_emit_the_same_table_for_any_division_into_batches(updates, cut):
    rows = [left(k, x, ts) | {"seq": i} for i, (k, x, ts) in enumerate(updates)]
    whole, split = a_table(), a_table()
    assert split.batch([rows[:cut]]) + split.batch([rows[cut:]]) == whole.batch([rows])
    assert split.contents("lefts") == whole.contents("lefts")
