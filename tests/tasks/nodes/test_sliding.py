"""Sliding windows against Kafka Streams' definition of them, applied to all records at once."""

from __future__ import annotations

from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.nodes import test_sessions as sessions
from tests.tasks.nodes.batches import Batches

from tidemark.tasks.nodes import sliding
from tidemark.tasks.nodes.sliding import SlidingAggregateOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Aggregation, SlidingWindow, StoreKind, StoreSpec

DIFFERENCE, GRACE = 10, 5
STORE = StoreSpec("s", StoreKind.WINDOW, 200, 20)
AGGREGATION = Aggregation(
    "AGG", STORE, SlidingWindow(DIFFERENCE, GRACE), "id", sessions.AGGREGATION.aggregates, sessions.AGGREGATION.columns
)
Records = list[tuple[str, int, int]]


def partials(records: Records) -> pa.Table:
    """Per key and timestamp of (key, timestamp, value) records."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, ts, value in records:
        groups[key, ts].append(value)
    return pa.table(
        {
            "k": pa.array([key for key, _ in groups], pa.string()),
            "w": pa.array([ts for _, ts in groups], pa.int64()),
            "rows": pa.array([len(v) for v in groups.values()], pa.int64()),
            "max_ts": pa.array([ts for _, ts in groups], pa.int64()),
            "n": pa.array([len(v) for v in groups.values()], pa.int64()),
            "least": pa.array([min(v) for v in groups.values()], pa.int64()),
            "most": pa.array([float(max(v)) for v in groups.values()], pa.float64()),
        }
    )


def windows_of(records: Records) -> dict[tuple[str, int], tuple[int, int, float, int]]:
    """By key and start: count, least, most and newest timestamp of each window that the records make."""
    found = {}
    for key, ts, _ in records:
        for start in (max(0, ts - DIFFERENCE), ts + 1):
            inside = [(v, t) for k, t, v in records if k == key and start <= t <= start + DIFFERENCE]
            if inside:
                values = [v for v, _ in inside]
                found[key, start] = (len(inside), min(values), float(max(values)), max(t for _, t in inside))
    return found


def batches(emits: bool = True) -> Batches:
    return Batches(lambda: SlidingAggregateOperator(AGGREGATION, emits), AGGREGATION.stores)


def seen(emitted) -> list[tuple[int, int, int]]:
    return sorted((r["window_start"], r["window_end"], r["n"]) for r in emitted.rows.to_pylist())


def test_should_make_the_window_that_ends_with_a_record():
    emitted = batches().run(partials([("a", 15, 7)]), newest_ms=15)
    assert emitted.rows.schema == rows_schema(AGGREGATION.columns)
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 15, "__seq": 0, "__deleted": False, "id": "a",
         "window_start": 5, "window_end": 15, "n": 1, "least": 7, "most": 7.0},
    ]  # fmt: skip


def test_should_let_no_window_begin_before_the_epoch():
    node = batches()
    assert seen(node.run(partials([("a", 3, 1)]), newest_ms=3)) == [(0, 10, 1)]
    assert seen(node.run(partials([("a", 7, 1)]), newest_ms=7)) == [(0, 10, 2), (4, 14, 1)]


@pytest.mark.parametrize(("ts", "together"), [(29, True), (30, True), (31, False)])
def test_should_take_both_ends_into_a_window(ts, together):
    node = batches()
    node.run(partials([("a", 20, 1)]), newest_ms=20)
    counts = {start: n for start, _, n in seen(node.run(partials([("a", ts, 1)]), newest_ms=ts))}
    assert counts[ts - DIFFERENCE] == (2 if together else 1)


@pytest.mark.parametrize(("after", "is_made"), [(DIFFERENCE, True), (DIFFERENCE + 1, True), (DIFFERENCE + 2, False)])
def test_should_make_the_window_behind_a_record_only_if_something_falls_into_it(after, is_made):
    node = batches()
    node.run(partials([("a", 20, 1)]), newest_ms=20)
    assert ((21, 31, 1) in seen(node.run(partials([("a", 20 + after, 1)]), newest_ms=20))) == is_made


@pytest.mark.parametrize(("stream_time", "late"), [(35, 0), (36, 2), (37, 2)])
def test_should_count_a_record_as_late_when_the_window_behind_it_is_closed(stream_time, late):
    node = batches()
    node.run(partials([("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = node.run(partials([("a", 20, 1), ("a", 20, 1)]), newest_ms=stream_time)
    assert emitted.late_rows == late


@pytest.mark.parametrize(("stream_time", "is_emitted"), [(24, True), (25, True), (26, False)])
def test_should_leave_a_window_as_it_is_when_it_ended_before_the_grace(stream_time, is_emitted):
    node = batches()
    node.run(partials([("a", 25, 1), ("z", stream_time, 1)]), newest_ms=stream_time)
    emitted = seen(node.run(partials([("a", 20, 1)]), newest_ms=stream_time))
    assert ((10, 20, 1) in emitted) == is_emitted
    assert (21, 31, 1) in emitted
    assert (15, 25, 2) in emitted


def test_should_not_mix_keys_of_which_one_begins_with_the_other():
    keys = ["a", "a\0\0\0\0\0\0\0\0", "a\0", "ab"]
    node = batches()
    node.run(partials([(key, 15, i) for i, key in enumerate(keys)]), newest_ms=15)
    emitted = node.run(partials([(key, 15, i) for i, key in enumerate(keys)]), newest_ms=15).rows.to_pylist()
    assert {row["id"]: (row["n"], row["least"]) for row in emitted} == {key: (2, i) for i, key in enumerate(keys)}


def test_should_build_no_rows_when_nobody_reads_them_but_write_the_store():
    loud, silent = batches(), batches(emits=False)
    loud.run(partials([("a", 0, 1)]), newest_ms=0)
    assert silent.run(partials([("a", 0, 1)]), newest_ms=0).rows.num_rows == 0
    assert silent.contents("s") == loud.contents("s")


def test_should_come_to_the_same_in_small_portions(monkeypatch):
    records = [("a", ts, ts) for ts in range(0, 60, 3)]
    whole = batches().run(partials(records)).rows
    monkeypatch.setattr(sliding, "_ROWS_AT_ONCE", 7)
    assert batches().run(partials(records)).rows == whole


def test_should_emit_nothing_when_nothing_comes_in():
    assert batches().run(partials([])).rows.schema == rows_schema(AGGREGATION.columns)


def test_should_refuse_a_window_of_another_kind():
    with pytest.raises(TypeError):
        SlidingAggregateOperator(sessions.AGGREGATION)


BATCH = st.lists(st.tuples(st.sampled_from(["a", "ab"]), st.integers(0, 60), st.integers(-9, 9)), max_size=5)


@given(st.lists(st.tuples(BATCH, st.booleans()), max_size=6))
def test_should_emit_for_any_cut_into_batches_the_changed_windows_and_only_those(cuts):
    node, records = batches(), []
    for batch, restarts in cuts:
        if restarts:
            node.restart()
        before = windows_of(records)
        records += batch
        # Stream time stands still, so that nothing is late.
        rows = node.run(partials(batch)).rows.to_pylist()
        emitted = {(r["id"], r["window_start"]): (r["n"], r["least"], r["most"], r["__ts"]) for r in rows}
        after = windows_of(records)
        assert len(emitted) == len(rows)
        assert emitted == {at: window for at, window in after.items() if before.get(at) != window}
        assert Counter(r["window_end"] - r["window_start"] for r in rows).keys() <= {DIFFERENCE}
