"""Distinct counts, quantiles and lists: merging by any grouping, the bytes, and all kinds of windows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from datasketches import HLL_8, hll_sketch, kll_doubles_sketch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import HLL_LG_K, KLL_K, ValueLayout, slots_of
from tidemark.stores.memory import MemoryStore
from tidemark.stores.pending import PendingStore
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.fold import fold_into, result_columns
from tidemark.tasks.merge import merge_groups
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.sessions import SessionAggregateOperator
from tidemark.tasks.operators.sliding import SlidingAggregateOperator
from tidemark.topology.plan import (
    Aggregate,
    Aggregation,
    Column,
    Fold,
    Number,
    SessionWindow,
    SlidingWindow,
    StoreKind,
    StoreSpec,
)

LIMIT = 3
AGGREGATES = (
    Aggregate("n", Fold.COUNT, None, Number.LONG),
    Aggregate("different", Fold.DISTINCT, "x", Number.LONG),
    Aggregate("middle", Fold.QUANTILE, "x", Number.DOUBLE, 0.5),
    Aggregate("total", Fold.SUM, "x", Number.LONG),
    Aggregate("last", Fold.COLLECT, "x", Number.TEXT, LIMIT),
)
LAYOUT = ValueLayout(slots_of(AGGREGATES))
VALUES = st.lists(st.one_of(st.none(), st.integers(-50, 50)), min_size=1, max_size=12)
BATCHES = st.lists(VALUES, min_size=1, max_size=6)
MANY = st.lists(st.integers(1, 6000), min_size=1, max_size=5)
TEXTS = st.lists(st.text(max_size=5), min_size=1, max_size=6)


def distinct_sketch(values) -> bytes:
    sketch = hll_sketch(HLL_LG_K, HLL_8)
    for value in values:
        sketch.update(value)
    return sketch.serialize_updatable()


def quantile_sketch(values) -> bytes:
    sketch = kll_doubles_sketch(KLL_K)
    for value in values:
        sketch.update(float(value))
    return sketch.serialize()


def partials(*batches, limit=LIMIT) -> pa.Table:
    """What Spark gives for one key per batch: HyperLogLog sketches have room for more, as Spark's have."""
    known = [[v for v in batch if v is not None] for batch in batches]
    columns = {
        "__max_ts": pa.array([1] * len(batches), pa.int64()),
        "n": pa.array([len(batch) for batch in batches], pa.int64()),
        "different": pa.array([distinct_sketch(k) for k in known], pa.binary()),
        "middle": pa.array([quantile_sketch(k) for k in known], pa.binary()),
        "total": pa.array([sum(k) if k else None for k in known], pa.int64()),
        "last": pa.array([k[-limit:] or None for k in known], pa.list_(pa.int64())),
    }
    return pa.table(columns)


def folded(batches) -> bytes:
    stored = None
    for batch in batches:
        stored = LAYOUT.encode(fold_into(LAYOUT, LAYOUT.decode([stored]), partials(batch)))[0]
    return stored


def read(value, aggregates=AGGREGATES, layout=LAYOUT):
    return {name: column.to_pylist()[0] for name, column in result_columns(layout, aggregates, layout.decode([value]))}


def check(result, values):
    known = [v for v in values if v is not None]
    assert result["n"] == len(values)
    assert result["different"] == len(set(known))
    ordered = sorted(known)
    assert result["middle"] == (ordered[-(-len(known) // 2) - 1] if known else None)
    assert result["total"] == (sum(known) if known else None)
    assert (json.loads(result["last"]) if result["last"] else None) == (known[-LIMIT:] or None)


@given(BATCHES)
def test_should_give_the_same_result_for_any_division_into_batches(batches):
    check(read(folded(batches)), [v for batch in batches for v in batch])


@given(BATCHES, st.data())
def test_should_merge_groups_into_the_same_as_folding_one_after_the_other(batches, data):
    cut = data.draw(st.integers(0, len(batches) - 1))
    records = fold_into(LAYOUT, LAYOUT.empty(len(batches)), partials(*batches))
    first = merge_groups(LAYOUT, records, np.unique([0, cut]))
    whole = merge_groups(LAYOUT, first, np.array([0]))
    check(read(LAYOUT.encode(whole)[0]), [v for batch in batches for v in batch])


@settings(deadline=None, max_examples=20)
@given(MANY, st.booleans())
def test_should_stay_within_the_sketches_errors_in_whatever_order_they_merge(sizes, from_the_left):
    batches = [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
    count = sum(sizes)
    if from_the_left:
        result = read(folded(batches))
    else:
        parts = fold_into(LAYOUT, LAYOUT.empty(len(batches)), partials(*batches[::-1]))
        result = read(LAYOUT.encode(merge_groups(LAYOUT, parts, np.array([0])))[0])
    # Six standard errors of one sketch, which merging does not add to.
    assert abs(result["different"] - count) <= max(1, 6 * 0.0163 * count)
    assert abs(result["middle"] - count / 2) <= 1 + 2 * 0.0071 * count


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 8))
def test_should_keep_any_text_whatever_characters_it_has(batches, limit):
    aggregates = (Aggregate("last", Fold.COLLECT, "x", Number.TEXT, limit),)
    layout = ValueLayout(slots_of(aggregates))
    stored = None
    for batch in batches:
        column = pa.table({"__max_ts": [1], "last": pa.array([batch[-limit:]], pa.list_(pa.string()))})
        stored = layout.encode(fold_into(layout, layout.decode([stored]), column))[0]
    values = [text for batch in batches for text in batch]
    assert json.loads(read(stored, aggregates, layout)["last"]) == values[-limit:]


def test_should_shorten_a_list_that_was_stored_under_a_larger_limit():
    smaller = tuple(Aggregate(a.name, a.fold, a.expression, a.number, 1) for a in AGGREGATES[-1:])
    larger = ValueLayout(slots_of(AGGREGATES[-1:]))
    column = partials([1, 2, 3]).select(["__max_ts", "last"])
    stored = larger.encode(fold_into(larger, larger.empty(1), column))[0]
    layout = ValueLayout(slots_of(smaller))
    assert layout.signature == larger.signature
    nothing = pa.table({"__max_ts": [1], "last": pa.array([None], pa.list_(pa.int64()))})
    new = fold_into(layout, layout.decode([stored]), nothing)
    assert read(layout.encode(new)[0], smaller, layout) == {"last": "[3]"}


def test_should_encode_a_list_as_fixed_part_length_and_lines():
    aggregates = (AGGREGATES[-1], AGGREGATES[0])
    layout = ValueLayout(slots_of(aggregates))
    new = fold_into(layout, layout.empty(2), partials([7, 8], [None]))
    assert layout.encode(new) == [
        b"\x04\x03" + b"\x01" + bytes(7) + b"\x02" + bytes(7) + b"\x03\x00\x00\x00" + b"7\n8",
        b"\x04\x02" + b"\x01" + bytes(7) + b"\x01" + bytes(7) + bytes(4),
    ]
    assert layout.value_bytes is None
    assert layout.signature == "4:last=collect:lines,n=count<i8"


def test_should_keep_a_small_distinct_count_small():
    layout = ValueLayout(slots_of(AGGREGATES[1:2]))
    new = fold_into(layout, layout.empty(1), partials([1, 2]))
    assert len(layout.encode(new)[0]) < 38


def test_should_encode_fixed_fields_without_lengths():
    layout = ValueLayout(slots_of((AGGREGATES[0],)))
    assert (layout.signature, layout.value_bytes, layout.dtype) == ("3:n=count<i8", 18, layout.fixed)


def test_should_not_let_the_rank_of_a_quantile_change_what_is_stored():
    ranks = [slots_of((Aggregate("p", Fold.QUANTILE, "x", Number.DOUBLE, rank),)) for rank in (0.5, 0.99)]
    assert ValueLayout(ranks[0]).signature == ValueLayout(ranks[1]).signature == "4:p=quantile:kll400"


WHOLE = folded([[1, 2, 3]])


@pytest.mark.parametrize(
    "value",
    [b"", WHOLE[:5], WHOLE[:-1], WHOLE + b"x", b"\x03" + WHOLE[1:], WHOLE[:28]],
    ids=["empty", "cut in the fixed part", "too short", "too long", "of fixed width", "cut before a length"],
)
def test_should_refuse_truncated_values(value):
    with pytest.raises(TaskCorrupted):
        LAYOUT.decode([value])


def test_should_refuse_bytes_that_are_not_a_sketch():
    layout = ValueLayout(slots_of(AGGREGATES[1:2]))
    damaged = b"\x04\x01" + bytes(8) + b"\x04\x00\x00\x00" + b"junk"
    with pytest.raises(TaskCorrupted, match=r"distinct\(x\)"):
        read(damaged, AGGREGATES[1:2], layout)
    with pytest.raises(TaskCorrupted, match="different=distinct:hll12"):
        fold_into(layout, layout.decode([damaged]), partials([1]))


def aggregation(window, kind) -> Aggregation:
    store = StoreSpec("s", kind, 100_000, 1_000)
    columns = (
        Column("id", "STRING"), Column("window_start", "BIGINT"), Column("window_end", "BIGINT"), Column("n", "BIGINT"),
        Column("different", "BIGINT"), Column("middle", "DOUBLE"), Column("total", "BIGINT"), Column("last", "STRING"),
    )  # fmt: skip
    return Aggregation("A", store, window, "id", AGGREGATES, columns)


class Runner:
    """Runs an aggregation batch by batch; an event is (key, time, value), one partial each."""

    def __init__(self, operator):
        self.operator = operator
        self.store = MemoryStore()

    def batch(self, *events):
        table = partials(*[[value] for _, _, value in events])
        times = pa.array([at for _, at, _ in events], pa.int64())
        named = {"__key": pa.array([key for key, _, _ in events]), "__window": times, "__max_ts": times}
        named["__last_offset"] = pa.array(range(len(events)), pa.int64())
        named["__rows"] = pa.array([1] * len(events), pa.int64())
        table = pa.table({**named, **{name: table.column(name) for name in table.schema.names if name != "__max_ts"}})
        pending = PendingStore(self.store)
        emitted = self.operator.run([table], {"s": pending}, BatchTime(NO_STREAM_TIME, NO_STREAM_TIME, 0))
        self.store.put_many(pending.writes(), None, None)
        return {
            (row["window_start"], row["window_end"]): None
            if row["__deleted"]
            else (row["different"], row["middle"], json.loads(row["last"]))
            for row in emitted.rows.to_pylist()
        }


def test_should_merge_sessions_that_grow_together():
    runner = Runner(SessionAggregateOperator(aggregation(SessionWindow(10, 1000), StoreKind.SESSION)))
    assert runner.batch(("a", 0, 5), ("a", 18, 7)) == {(0, 0): (1, 5.0, [5]), (18, 18): (1, 7.0, [7])}
    assert runner.batch(("a", 9, 5)) == {(0, 18): (2, 5.0, [5, 7, 5]), (0, 0): None, (18, 18): None}
    assert runner.batch(("a", 20, 9)) == {(0, 20): (3, 5.0, [7, 5, 9]), (0, 18): None}


def test_should_merge_sliding_windows_in_the_order_of_arrival():
    runner = Runner(SlidingAggregateOperator(aggregation(SlidingWindow(10, 1000), StoreKind.WINDOW)))
    assert runner.batch(("a", 20, 5)) == {(10, 20): (1, 5.0, [5])}
    assert runner.batch(("a", 15, 7), ("a", 25, 7)) == {
        (5, 15): (1, 7.0, [7]),
        (10, 20): (2, 5.0, [5, 7]),
        (15, 25): (2, 7.0, [5, 7, 7]),
        (16, 26): (2, 5.0, [5, 7]),
        (21, 31): (1, 7.0, [7]),
    }
