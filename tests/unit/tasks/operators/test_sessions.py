"""Session windows compared with a record-by-record model, and each rule at its boundary."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import Batches

from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stores.session_keys import session_keys, sessions_between, split_session_key
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.tasks.operators.sessions import SessionAggregateOperator
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


def partials(*chunks: list[tuple[str, int, int]], one_by_one: bool = False) -> pa.Table:
    """(key, timestamp, value) records in the order of their offsets, those of a key and time in one row as Spark has them."""
    groups: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
    for offset, (key, ts, value) in enumerate(record for chunk in chunks for record in chunk):
        groups[(key, ts, offset) if one_by_one else (key, ts)].append((offset, value))
    values = [[value for _, value in rows] for rows in groups.values()]
    return pa.table(
        {
            "__key": pa.array([at[0] for at in groups], pa.string()),
            "__window": pa.array([at[1] for at in groups], pa.int64()),
            "__rows": pa.array([len(v) for v in values], pa.int64()),
            "__max_ts": pa.array([at[1] for at in groups], pa.int64()),
            "__last_offset": pa.array([rows[-1][0] for rows in groups.values()], pa.int64()),
            "n": pa.array([len(v) for v in values], pa.int64()),
            "least": pa.array([min(v) for v in values], pa.int64()),
            "most": pa.array([float(max(v)) for v in values], pa.float64()),
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


def test_should_merge_two_stored_sessions_with_a_record_between_them_and_delete_both():
    node = batches()
    node.run(partials([("a", 0, 5), ("a", 20, 9)]), newest_ms=20)
    emitted = node.run(partials([("a", 10, 1)]), newest_ms=20)
    assert seen(emitted) == [("a", 0, 0, None, True), ("a", 20, 20, None, True), ("a", 0, 20, 3, False)]
    assert emitted.rows.filter(pa.array([False, False, True])).select(["least", "most"]).to_pylist() == [
        {"least": 1, "most": 9.0}
    ]
    assert [split_session_key(key) for key in node.contents("s")] == [(b"a", 0, 20)]
    assert list(node.written["s"].values()).count(None) == 2


def test_should_delete_a_session_that_keeps_its_window_before_it_updates_it_as_kafka_streams_does():
    node = batches()
    node.run(partials([("a", 0, 1), ("a", 4, 1)]), newest_ms=4)
    assert seen(node.run(partials([("a", 2, 1)]), newest_ms=4)) == [("a", 0, 4, None, True), ("a", 0, 4, 3, False)]
    assert [split_session_key(key) for key in node.contents("s")] == [(b"a", 0, 4)]


def test_should_delete_nothing_when_all_records_of_a_session_have_one_time():
    node = batches()
    node.run(partials([("a", 4, 1)]), newest_ms=4)
    assert seen(node.run(partials([("a", 4, 1)]), newest_ms=4)) == [("a", 4, 4, 2, False)]


def test_should_delete_a_session_before_its_successor_that_ends_at_the_same_time():
    node = batches()
    node.run(partials([("k", 100, 1)]), newest_ms=100)
    emitted = node.run(partials([("k", 90, 1)]), newest_ms=100)
    assert seen(emitted) == [("k", 100, 100, None, True), ("k", 90, 100, 2, False)]
    assert emitted.rows["__ts"].to_pylist() == [100, 100]
    assert emitted.rows["__seq"].to_pylist() == [0, 0]


def test_should_emit_sessions_in_the_order_of_their_last_records():
    emitted = batches().run(partials([("a", 50, 1), ("b", 60, 1), ("a", 0, 1)]), newest_ms=60)
    assert [(key, start) for key, start, *_ in seen(emitted)] == [("a", 50), ("b", 60), ("a", 0)]


def test_should_not_let_a_chain_of_late_records_reach_an_open_session():
    node = batches()
    node.run(partials([("k", 40, 1)]), newest_ms=40)
    emitted = node.run(partials([("k", ts, 1) for ts in (5, 14, 23, 32)]), newest_ms=40)
    assert (seen(emitted), emitted.late_rows) == ([("k", 40, 40, None, True), ("k", 32, 40, 2, False)], 3)


def test_should_accept_late_records_when_earlier_ones_have_extended_the_session_towards_them():
    node = batches()
    node.run(partials([("k", 40, 1)]), newest_ms=40)
    emitted = node.run(partials([("k", ts, 1) for ts in (32, 23, 14, 5)]), newest_ms=40)
    assert (seen(emitted), emitted.late_rows) == ([("k", 40, 40, None, True), ("k", 5, 40, 5, False)], 0)


@pytest.mark.parametrize(("stream_time", "late"), [(GAP + GRACE - 1, 0), (GAP + GRACE, 0), (GAP + GRACE + 1, 2)])
def test_should_count_records_as_late_when_their_session_ended_before_grace_and_gap(stream_time, late):
    node = batches()
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = node.run(partials([("a", 0, 1), ("a", 0, 1)]), newest_ms=stream_time)
    assert (emitted.late_rows, emitted.rows.num_rows) == (late, 0 if late else 1)


def test_should_accept_an_old_record_when_it_reaches_an_open_session():
    node = batches()
    node.run(partials([("a", 8, 1), ("z", 20, 1)]), newest_ms=20)
    emitted = node.run(partials([("a", 0, 1)]), newest_ms=20)
    assert (seen(emitted), emitted.late_rows) == ([("a", 8, 8, None, True), ("a", 0, 8, 2, False)], 0)


def test_should_not_change_a_stored_session_when_a_late_record_reaches_it():
    node = batches()
    node.run(partials([("a", 3, 1), ("z", 100, 1)]), newest_ms=100)
    before = node.contents("s")
    assert node.run(partials([("a", 1, 1)]), newest_ms=100).late_rows == 1
    assert node.contents("s") == before


@pytest.mark.parametrize(("stream_time", "merges"), [(403, True), (404, True), (405, False)])
def test_should_ignore_an_expired_session_whose_segment_still_exists(stream_time, merges):
    node = batches()
    node.run(partials([("a", 205, 1)]), newest_ms=205)
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    assert b"a" in {split_session_key(key)[0] for key in node.contents("s")}
    # A long session within one batch reaches back further than any record alone could.
    emitted = node.run(partials([("a", ts, 1) for ts in range(400, 209, -10)]), newest_ms=stream_time)
    live = [row for row in emitted.rows.to_pylist() if not row["__deleted"]]
    assert [row["window_start"] for row in live] == [205 if merges else 210]


def test_should_not_mix_keys_when_one_is_a_prefix_of_the_other():
    keys = ["a", "a\0\0\0\0\0\0\0\0", "a\0", "ab", "a" + "\0" * 7 + "\x05" + "\0" * 8]
    node = batches()
    node.run(partials([(key, 5, i) for i, key in enumerate(keys)]), newest_ms=5)
    emitted = node.run(partials([(key, 6, i) for i, key in enumerate(keys)]), newest_ms=6)
    live = [row for row in emitted.rows.to_pylist() if not row["__deleted"]]
    assert {row["id"]: (row["n"], row["least"]) for row in live} == {key: (2, i) for i, key in enumerate(keys)}


class CountsKeys(PendingStore):
    """A store that counts the keys that a scan reads."""

    keys_read = 0

    def range(self, segment, start, end):
        for pair in super().range(segment, start, end):
            self.keys_read += 1
            yield pair


@pytest.mark.parametrize("at", [0, 5, LATEST_TIMESTAMP_MS])
def test_should_read_no_session_of_keys_that_begin_with_the_key(at):
    keys = ["1", *(f"1{character}" for character in "\x01 059A\x7fé😀"), "2"]
    times = np.full(len(keys), at, np.int64)
    store = CountsKeys(MemoryStore())
    store.put_many(0, session_keys(pa.array(keys), times, times), [key.encode() for key in keys])
    assert list(sessions_between(store, 0, b"1", 0, LATEST_TIMESTAMP_MS)) == [(at, at, b"1")]
    assert store.keys_read == 1


def test_should_write_the_store_without_building_rows_when_nobody_reads_them():
    loud, silent = batches(), batches(emits=False)
    loud.run(partials([("a", 0, 1)]), newest_ms=0)
    assert silent.run(partials([("a", 0, 1)]), newest_ms=0).rows.num_rows == 0
    assert silent.contents("s") == loud.contents("s")


def test_should_emit_nothing_for_empty_input():
    assert batches().run(partials()).rows.schema == rows_schema(AGGREGATION.columns)


def test_should_refuse_windows_of_another_kind():
    with pytest.raises(TypeError):
        SessionAggregateOperator(
            Aggregation("AGG", AGGREGATION.store, Window(1, 1, 1), "id", AGGREGATION.aggregates, AGGREGATION.columns)
        )


def in_kafka_streams(sessions: list[Session], record: tuple[int, int], first_open_end: int) -> list[Session]:
    """`KStreamSessionWindowAggregate.process` for one record of a key, at the stream time of the batch's start."""
    time, value = record
    merged = merged_into(sessions, time, time, [value])
    return sessions if merged[-1][1] < first_open_end else merged


RECORDS = st.lists(st.tuples(st.sampled_from(["a", "ab", ""]), st.integers(0, 120), st.integers(-9, 9)), max_size=6)
BATCHES = st.lists(st.tuples(st.lists(RECORDS, max_size=3), st.booleans()), max_size=6)


@pytest.mark.parametrize("depends_on_order", [False, True])
@given(BATCHES, st.booleans(), st.booleans())
def test_should_hold_the_same_as_kafka_streams_for_any_division_into_batches(
    depends_on_order, cuts, stands, one_by_one
):
    node = batches()
    node.operator._depends_on_order = depends_on_order
    view, expected = {}, defaultdict(list)
    for chunks, restarts in cuts:
        if restarts:
            node.restart()
            node.operator._depends_on_order = depends_on_order
        records = [record for chunk in chunks for record in chunk]
        first_open_end = -1 if node.stream_time_ms == -1 else node.stream_time_ms - GAP - GRACE
        if not one_by_one:
            # Spark has the records of a key and time in one row, at the place of the last.
            places = {record[:2]: i for i, record in enumerate(records)}
            records = [r for _, r in sorted(enumerate(records), key=lambda each: places[each[1][:2]])]
        for key, ts, value in records:
            expected[key] = in_kafka_streams(expected[key], (ts, value), first_open_end)
        newest = -1 if stands else max([ts for _, ts, _ in records], default=-1)
        for row in node.run(partials(*chunks, one_by_one=one_by_one), newest_ms=newest).rows.to_pylist():
            window = (row["id"], row["window_start"], row["window_end"])
            if row["__deleted"]:
                del view[window]
            else:
                view[window] = (row["n"], row["least"], row["most"])
    found = {
        (key, start, end): (len(values), min(values), max(values))
        for key, sessions in expected.items()
        for start, end, values in sessions
    }
    assert view == found
    assert {split_session_key(key) for key in node.contents("s")} == {(k.encode(), s, e) for k, s, e in found}
