"""Windowed and unwindowed aggregation as a node: late partials, segments, order and types of what it emits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import Batches

from tidemark.stores.layout import split_window_key
from tidemark.stores.memory import MemoryStore
from tidemark.tasks.operators.aggregate import WindowedAggregateOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Aggregate, Aggregation, Fold, Number, SessionWindow, StoreKind, StoreSpec, Window
from tidemark.topology.schema import parse_schema

MINUTE = 60_000
GRACE = 5_000
WINDOWED = Aggregation(
    "AGG",
    StoreSpec("counts", StoreKind.WINDOW, 6 * MINUTE, 3 * MINUTE),
    Window(MINUTE, MINUTE, GRACE),
    "id",
    (Aggregate("n", Fold.COUNT, None, Number.LONG), Aggregate("mean", Fold.MEAN, "x", Number.DOUBLE)),
    parse_schema("id STRING, window_start BIGINT, window_end BIGINT, n BIGINT, mean DOUBLE", "emitted"),
)
PLAIN = Aggregation(
    "AGG", StoreSpec("counts", StoreKind.KEY_VALUE, None, None), None, "id",
    (Aggregate("n", Fold.COUNT, None, Number.LONG),), parse_schema("id STRING, n BIGINT", "emitted"),
)  # fmt: skip


def partials(*given: tuple[str, int, int, int]) -> pa.Table:
    """(key, window start, records, newest timestamp), in the order of offsets; the mean's values are all 2.0."""
    return pa.table(
        {
            "__key": pa.array([g[0] for g in given], pa.string()),
            "__window": pa.array([g[1] for g in given], pa.int64()),
            "__rows": pa.array([g[2] for g in given], pa.int64()),
            "__max_ts": pa.array([g[3] for g in given], pa.int64()),
            "__last_offset": pa.array(range(len(given)), pa.int64()),
            "n": pa.array([g[2] for g in given], pa.int64()),
            "mean.sum": pa.array([2.0 * g[2] for g in given], pa.float64()),
            "mean.count": pa.array([g[2] for g in given], pa.int64()),
        }
    )


def batches(aggregation: Aggregation = WINDOWED, emits: bool = True) -> Batches:
    return Batches(lambda: WindowedAggregateOperator(aggregation, emits), aggregation.stores)


def test_should_emit_the_merged_result_of_each_touched_window_with_the_plans_columns():
    node = batches()
    node.run(partials(("a", 0, 2, 30_000)), newest_ms=30_000)
    emitted = node.run(partials(("a", 0, 3, 40_000), ("b", 0, 1, 41_000)), newest_ms=41_000)
    assert emitted.rows.schema == rows_schema(WINDOWED.columns)
    assert emitted.rows.to_pylist() == [
        {"__k": "a", "__ts": 40_000, "__seq": 0, "__deleted": False, "id": "a",
         "window_start": 0, "window_end": MINUTE, "n": 5, "mean": 2.0},
        {"__k": "b", "__ts": 41_000, "__seq": 1, "__deleted": False, "id": "b",
         "window_start": 0, "window_end": MINUTE, "n": 1, "mean": 2.0},
    ]  # fmt: skip


def test_should_order_rows_by_the_last_record_of_each_window_across_segments():
    rows = partials(("b", 4 * MINUTE, 1, 9), ("b", 0, 1, 3), ("a", 4 * MINUTE, 1, 9), ("z", 0, 1, 1))
    emitted = batches().run(rows, newest_ms=9).rows
    assert list(zip(emitted["__k"].to_pylist(), emitted["window_start"].to_pylist(), strict=True)) == [
        ("b", 4 * MINUTE), ("b", 0), ("a", 4 * MINUTE), ("z", 0),
    ]  # fmt: skip


def test_should_emit_the_windows_of_one_record_from_the_earliest_on_under_its_number():
    rows = partials(("a", MINUTE, 1, 70_000), ("a", 30_000, 1, 70_000), ("b", 0, 1, 5))
    rows = rows.set_column(rows.schema.get_field_index("__last_offset"), "__last_offset", pa.array([7, 7, 8]))
    emitted = batches().run(rows, newest_ms=70_000).rows
    assert emitted["window_start"].to_pylist() == [30_000, MINUTE, 0]
    assert emitted["__seq"].to_pylist() == [7, 7, 8]


@pytest.mark.parametrize("aggregation", [WINDOWED, PLAIN], ids=["windowed", "plain"])
def test_should_emit_the_newest_timestamp_that_the_value_ever_had(aggregation):
    node = batches(aggregation)
    node.run(partials(("a", 0, 1, 50_000)), newest_ms=50_000)
    node.restart()
    emitted = node.run(partials(("a", 0, 1, 20_000), ("b", 0, 1, 10_000)), newest_ms=50_000)
    assert emitted.rows["__ts"].to_pylist() == [50_000, 10_000]


@pytest.mark.parametrize(
    ("stream_time", "late"), [(MINUTE + GRACE - 1, 0), (MINUTE + GRACE, 7), (MINUTE + GRACE + 1, 7)]
)
def test_should_judge_lateness_by_the_stream_time_of_the_batchs_start(stream_time, late):
    node = batches()
    node.run(partials(("z", MINUTE, 1, stream_time)), newest_ms=stream_time)
    emitted = node.run(partials(("a", 0, 7, 59_000), ("b", 10 * MINUTE, 1, 10 * MINUTE)), newest_ms=10 * MINUTE)
    assert emitted.late_rows == late
    assert ("a" in emitted.rows["__k"].to_pylist()) == (late == 0)


def test_should_keep_each_window_in_its_segment():
    node = batches()
    node.run(partials(("a", 0, 1, 1), ("a", 4 * MINUTE, 2, 5)), newest_ms=5)
    store = node.stores["counts"]
    assert store.segments() == [0, 1]
    assert [split_window_key(key) for key, _ in store.items(1)] == [(b"a", 4 * MINUTE)]


def test_should_write_the_store_without_building_rows_when_nobody_reads_them():
    loud, silent = batches(), batches(emits=False)
    given_rows = partials(("a", 0, 2, 1), ("b", 4 * MINUTE, 3, 5))
    loud.run(given_rows, newest_ms=5)
    assert silent.run(given_rows, newest_ms=5).rows.num_rows == 0
    assert silent.contents("counts") == loud.contents("counts")


def test_should_emit_nothing_for_empty_input():
    emitted = batches().run(partials())
    assert (emitted.rows.num_rows, emitted.late_rows) == (0, 0)
    assert emitted.rows.schema == rows_schema(WINDOWED.columns)


def test_should_never_treat_unwindowed_partial_results_as_late():
    node = batches(PLAIN)
    node.run(partials(("a", 0, 1, 10 * MINUTE)).drop_columns("__window"), newest_ms=10 * MINUTE)
    emitted = node.run(partials(("a", 0, 2, 1)).drop_columns("__window"), newest_ms=1)
    assert (emitted.rows["n"].to_pylist(), emitted.late_rows) == ([3], 0)
    assert list(node.contents("counts")) == [b"a"]


def test_should_refuse_windows_of_another_kind():
    with pytest.raises(TypeError):
        WindowedAggregateOperator(
            Aggregation("AGG", WINDOWED.store, SessionWindow(1, 1), "id", WINDOWED.aggregates, WINDOWED.columns)
        )


CUTS = st.dictionaries(st.tuples(st.sampled_from("abé"), st.integers(0, 5)), st.integers(1, 9), min_size=1)


@given(st.lists(st.tuples(CUTS, st.sampled_from(["commit", "restart", "discard"])), max_size=6))
def test_should_count_the_same_for_any_division_into_batches(cuts):
    """Whatever the order in which windows come: some batches are thrown away, after others the task is opened again."""
    node, total = batches(), {}
    for cut, fate in cuts:
        rows = partials(*((k, w * MINUTE, n, 1) for (k, w), n in cut.items()))
        if fate == "discard":
            node.prepare(rows, newest_ms=1)
            continue
        node.run(rows, newest_ms=1)
        for at, n in cut.items():
            total[at] = total.get(at, 0) + n
        if fate == "restart":
            node.restart()
    emitted = node.run(partials(*((k, w * MINUTE, 0, 1) for k, w in total)), newest_ms=1).rows.to_pylist()
    assert {(row["id"], row["window_start"] // MINUTE): row["n"] for row in emitted} == total


class Reading(MemoryStore):
    """A store that notes the keys that are read."""

    def __init__(self):
        super().__init__()
        self.read = []

    def get_many(self, segment, keys):
        self.read += [split_window_key(key) for key in keys]
        return super().get_many(segment, keys)


def test_should_hold_nothing_about_segments_that_have_expired():
    node = batches()
    for minute in range(100):
        node.run(partials(("a", minute * MINUTE, 1, minute * MINUTE)), newest_ms=minute * MINUTE)
    # Three minutes each: the six minutes of the retention, and the segments at both ends.
    assert len(node.stores["counts"].segments()) <= len(node.operator._newest_starts) <= 4


def test_should_read_only_windows_that_may_be_stored():
    node = batches()
    node.stores["counts"] = store = Reading()
    node.run(partials(("a", 0, 1, 1), ("b", MINUTE, 1, 1)), newest_ms=1)
    assert store.read == []
    node.run(partials(("a", MINUTE, 1, 1), ("a", 2 * MINUTE, 1, 1), ("b", 4 * MINUTE, 1, 1)), newest_ms=1)
    assert store.read == [(b"a", MINUTE)]
    store.read.clear()
    # Another operator does not know what is in the segments that it finds.
    node.restart()
    node.run(partials(("a", 2 * MINUTE, 1, 1), ("b", 5 * MINUTE, 1, 1), ("b", 7 * MINUTE, 1, 1)), newest_ms=1)
    assert store.read == [(b"a", 2 * MINUTE), (b"b", 5 * MINUTE)]
