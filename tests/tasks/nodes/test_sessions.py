"""Session windows against a record-by-record account of them, and each rule at its boundary."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.nodes.batches import Batches

from tidemark.stores.session_keys import split_session_key
from tidemark.tasks.nodes.sessions import SessionAggregateOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Aggregate, Aggregation, Fold, Number, SessionWindow, StoreKind, StoreSpec, Window
from tidemark.topology.schema import parse_schema

GAP, GRACE = 10, 5
RETENTION = 200
SEGMENT = 20
AGGREGATION = Aggregation(
    "AGG",
    StoreSpec("s", StoreKind.SESSION, RETENTION, SEGMENT),
    SessionWindow(GAP, GRACE),
    "id",
    (
        Aggregate("n", Fold.COUNT, None, Number.LONG),
        Aggregate("least", Fold.MIN, "x", Number.LONG),
        Aggregate("most", Fold.MAX, "x", Number.DOUBLE),
    ),
    parse_schema("id STRING, window_start BIGINT, window_end BIGINT, n BIGINT, least BIGINT, most DOUBLE", "emitted"),
)
Session = tuple[int, int, list[int]]


def merged_into(sessions: list[Session], start: int, end: int, values: list[int]) -> list[Session]:
    """Kafka Streams' rule for one more record or session."""
    reached = [s for s in sessions if s[1] >= start - GAP and s[0] <= end + GAP]
    merged = (
        min([start, *(s[0] for s in reached)]),
        max([end, *(s[1] for s in reached)]),
        [x for s in reached for x in s[2]] + values,
    )
    return [s for s in sessions if s not in reached] + [merged]


def sessions_of(records: list[tuple[str, int, int]]) -> dict[str, list[Session]]:
    found: dict[str, list[Session]] = defaultdict(list)
    for key, ts, value in records:
        found[key] = merged_into(found[key], ts, ts, [value])
    return found


def partials(*chunks: list[tuple[str, int, int]]) -> pa.Table:
    """Each chunk of (key, timestamp, value) records becomes partial sessions of its own, as Spark's tasks make them."""
    rows = [(key, *s) for chunk in chunks for key, sessions in sessions_of(chunk).items() for s in sessions]
    return pa.table(
        {
            "k": pa.array([r[0] for r in rows], pa.string()),
            "w": pa.array([r[1] for r in rows], pa.int64()),
            "e": pa.array([r[2] for r in rows], pa.int64()),
            "rows": pa.array([len(r[3]) for r in rows], pa.int64()),
            "max_ts": pa.array([r[2] for r in rows], pa.int64()),
            "n": pa.array([len(r[3]) for r in rows], pa.int64()),
            "least": pa.array([min(r[3]) for r in rows], pa.int64()),
            "most": pa.array([float(max(r[3])) for r in rows], pa.float64()),
        }
    )


def batches(emits: bool = True) -> Batches:
    return Batches(lambda: SessionAggregateOperator(AGGREGATION, emits), AGGREGATION.stores)


def seen(emitted) -> list[tuple]:
    rows = emitted.rows.to_pylist()
    return [(r["id"], r["window_start"], r["window_end"], r["n"], r["__deleted"]) for r in rows]


def test_should_begin_a_session_with_a_keys_first_record():
    emitted = batches().run(partials([("a", 3, 7)]), newest_ms=3)
    assert emitted.rows.schema == rows_schema(AGGREGATION.columns)
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 3, "__seq": 0, "__deleted": False, "id": "a",
         "window_start": 3, "window_end": 3, "n": 1, "least": 7, "most": 7.0},
    ]  # fmt: skip


@pytest.mark.parametrize(("ts", "joins"), [(GAP - 1, True), (GAP, True), (GAP + 1, False)])
def test_should_merge_sessions_that_are_at_most_the_gap_apart(ts, joins):
    node = batches()
    node.run(partials([("a", 0, 1)]), newest_ms=0)
    expected = [("a", 0, 0, None, True), ("a", 0, ts, 2, False)] if joins else [("a", ts, ts, 1, False)]
    assert seen(node.run(partials([("a", ts, 1)]), newest_ms=ts)) == expected


def test_should_join_two_stored_sessions_by_a_record_between_them_and_delete_both():
    node = batches()
    node.run(partials([("a", 0, 5), ("a", 20, 9)]), newest_ms=20)
    emitted = node.run(partials([("a", 10, 1)]), newest_ms=20)
    assert seen(emitted) == [("a", 0, 0, None, True), ("a", 0, 20, 3, False), ("a", 20, 20, None, True)]
    assert emitted.rows.filter(pa.array([False, True, False])).select(["least", "most"]).to_pylist() == [
        {"least": 1, "most": 9.0}
    ]
    assert [split_session_key(key) for key in node.contents("s")] == [(b"a", 0, 20)]
    assert list(node.written["s"].values()).count(None) == 2


def test_should_not_delete_a_session_that_keeps_its_window():
    node = batches()
    node.run(partials([("a", 0, 1), ("a", 4, 1)]), newest_ms=4)
    assert seen(node.run(partials([("a", 2, 1)]), newest_ms=4)) == [("a", 0, 4, 3, False)]


@pytest.mark.parametrize(("stream_time", "late"), [(GAP + GRACE - 1, 0), (GAP + GRACE, 0), (GAP + GRACE + 1, 2)])
def test_should_count_records_as_late_when_their_session_ended_before_grace_and_gap(stream_time, late):
    node = batches()
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = node.run(partials([("a", 0, 1), ("a", 0, 1)]), newest_ms=stream_time)
    assert (emitted.late_rows, emitted.rows.num_rows) == (late, 0 if late else 1)


def test_should_take_an_old_record_in_when_it_reaches_a_session_that_is_still_open():
    node = batches()
    node.run(partials([("a", 8, 1), ("z", 20, 1)]), newest_ms=20)
    emitted = node.run(partials([("a", 0, 1)]), newest_ms=20)
    assert (seen(emitted), emitted.late_rows) == ([("a", 0, 8, 2, False), ("a", 8, 8, None, True)], 0)


def test_should_leave_a_stored_session_alone_when_a_late_record_reaches_it():
    node = batches()
    node.run(partials([("a", 3, 1), ("z", 100, 1)]), newest_ms=100)
    before = node.contents("s")
    assert node.run(partials([("a", 1, 1)]), newest_ms=100).late_rows == 1
    assert node.contents("s") == before


@pytest.mark.parametrize(("stream_time", "merges"), [(404, True), (405, True), (406, False)])
def test_should_not_count_on_an_expired_session_whose_segment_is_still_there(stream_time, merges):
    node = batches()
    node.run(partials([("a", 205, 1)]), newest_ms=205)
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    assert b"a" in {split_session_key(key)[0] for key in node.contents("s")}
    # A long session within one batch reaches back further than any record alone could.
    emitted = node.run(partials([("a", ts, 1) for ts in range(210, 401, 10)]), newest_ms=stream_time)
    live = [row for row in emitted.rows.to_pylist() if not row["__deleted"]]
    assert [row["window_start"] for row in live] == [205 if merges else 210]


def test_should_not_mix_keys_of_which_one_begins_with_the_other():
    keys = ["a", "a\0\0\0\0\0\0\0\0", "a\0", "ab", "a" + "\0" * 7 + "\x05" + "\0" * 8]
    node = batches()
    node.run(partials([(key, 5, i) for i, key in enumerate(keys)]), newest_ms=5)
    emitted = node.run(partials([(key, 6, i) for i, key in enumerate(keys)]), newest_ms=6)
    live = [row for row in emitted.rows.to_pylist() if not row["__deleted"]]
    assert {row["id"]: (row["n"], row["least"]) for row in live} == {key: (2, i) for i, key in enumerate(keys)}


def test_should_build_no_rows_when_nobody_reads_them_but_write_the_store():
    loud, silent = batches(), batches(emits=False)
    loud.run(partials([("a", 0, 1)]), newest_ms=0)
    assert silent.run(partials([("a", 0, 1)]), newest_ms=0).rows.num_rows == 0
    assert silent.contents("s") == loud.contents("s")


def test_should_emit_nothing_when_nothing_comes_in():
    assert batches().run(partials()).rows.schema == rows_schema(AGGREGATION.columns)


def test_should_refuse_a_window_of_another_kind():
    with pytest.raises(TypeError):
        SessionAggregateOperator(
            Aggregation("AGG", AGGREGATION.store, Window(1, 1, 1), "id", AGGREGATION.aggregates, AGGREGATION.columns)
        )


RECORDS = st.lists(st.tuples(st.sampled_from(["a", "ab", ""]), st.integers(0, 120), st.integers(-9, 9)), max_size=6)


@given(st.lists(st.tuples(st.lists(RECORDS, max_size=3), st.booleans()), max_size=6))
def test_should_hold_after_any_cut_into_batches_the_sessions_of_all_records(cuts):
    node = batches()
    node.stream_time_ms = -1
    view, records = {}, []
    for chunks, restarts in cuts:
        if restarts:
            node.restart()
        # Stream time stands still, so that nothing is late.
        for row in node.run(partials(*chunks)).rows.to_pylist():
            window = (row["id"], row["window_start"], row["window_end"])
            if row["__deleted"]:
                del view[window]
            else:
                view[window] = (row["n"], row["least"], row["most"])
        records += [record for chunk in chunks for record in chunk]
    expected = {
        (key, start, end): (len(values), min(values), max(values))
        for key, sessions in sessions_of(records).items()
        for start, end, values in sessions
    }
    assert view == expected
    assert {split_session_key(key) for key in node.contents("s")} == {(k.encode(), s, e) for k, s, e in expected}
