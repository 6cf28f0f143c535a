"""Merging partial results and writing JSON, by columns; each held to a plain-Python account of the same."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import TaskCorrupted
from tidemark.stores.layout import ValueLayout, slots_of, split_window_key, window_keys
from tidemark.tasks.fold import fold_into, result_columns
from tidemark.tasks.render import json_records
from tidemark.topology.plan import Aggregate, Fold, Number

AGGREGATES = (
    Aggregate("n", Fold.COUNT, None, Number.LONG),
    Aggregate("total", Fold.SUM, "x", Number.LONG),
    Aggregate("least", Fold.MIN, "x", Number.LONG),
    Aggregate("most", Fold.MAX, "x", Number.DOUBLE),
    Aggregate("middle", Fold.MEAN, "x", Number.DOUBLE),
)
LAYOUT = ValueLayout(slots_of(AGGREGATES))
VALUES = st.lists(st.one_of(st.none(), st.integers(-1000, 1000)), min_size=1, max_size=6)


def partial_of(values: list[int | None]) -> pa.Table:
    """What Spark gives for one key and these values."""
    known = [v for v in values if v is not None]
    columns = {
        "n": pa.array([len(values)], pa.int64()),
        "total": pa.array([sum(known) if known else None], pa.int64()),
        "least": pa.array([min(known) if known else None], pa.int64()),
        "most": pa.array([float(max(known)) if known else None], pa.float64()),
        "middle.sum": pa.array([float(sum(known)) if known else None], pa.float64()),
        "middle.count": pa.array([len(known)], pa.int64()),
    }
    return pa.table(columns)


def folded(*batches: list[int | None]) -> dict[str, object]:
    stored: bytes | None = None
    for batch in batches:
        new = fold_into(LAYOUT, LAYOUT.decode([stored]), partial_of(batch))
        stored = LAYOUT.encode(new)[0]
    columns = result_columns(LAYOUT, AGGREGATES, LAYOUT.decode([stored]))
    return {name: column.to_pylist()[0] for name, column in columns}


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_should_give_for_any_cut_into_batches_what_all_values_give_at_once(batches):
    values = [v for batch in batches for v in batch]
    known = [v for v in values if v is not None]
    result = folded(*batches)
    assert result["n"] == len(values)
    assert result["total"] == (sum(known) if known else None)
    assert result["least"] == (min(known) if known else None)
    assert result["most"] == (float(max(known)) if known else None)
    assert result["middle"] == (pytest.approx(sum(known) / len(known)) if known else None)


def test_should_not_take_zero_for_the_least_of_positive_or_the_most_of_negative_values():
    assert folded([5], [7])["least"] == 5
    assert folded([-5], [-7])["most"] == -5.0


def test_should_keep_what_was_known_when_a_batch_brings_only_nulls():
    result = folded([3], [None])
    assert (result["n"], result["total"], result["least"]) == (2, 3, 3)


def test_should_lay_a_count_out_as_schema_mask_and_eight_bytes():
    layout = ValueLayout(slots_of(AGGREGATES[:1]))
    new = fold_into(layout, layout.decode([None]), pa.table({"n": pa.array([258], pa.int64())}))
    assert layout.encode(new) == [b"\x01\x01\x02\x01\x00\x00\x00\x00\x00\x00"]


@pytest.mark.parametrize("value", [b"", b"\x01\x01", b"\x02\x01" + bytes(8)])
def test_should_refuse_values_of_another_width_or_schema(value):
    with pytest.raises(TaskCorrupted):
        ValueLayout(slots_of(AGGREGATES[:1])).decode([value])


def test_should_order_window_keys_by_key_then_time_and_take_them_apart_again():
    starts = np.array([60_000, 0, 60_000], dtype=np.int64)
    keys = window_keys(pa.array(["b", "a", "a"]), starts)
    assert [split_window_key(k) for k in sorted(keys)] == [(b"a", 0), (b"a", 60_000), (b"b", 60_000)]


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_should_write_any_key_as_json_that_a_parser_reads_back(keys):
    written = json_records([("k", pa.array(keys, pa.string())), ("n", pa.array(range(len(keys))))])
    assert [json.loads(w) for w in written.to_pylist()] == [{"k": k, "n": i} for i, k in enumerate(keys)]


def test_should_write_null_for_what_json_does_not_have():
    written = json_records(
        [("x", pa.array([1.5, math.nan, math.inf, None])), ("b", pa.array([True, False, None, True]))]
    )
    assert [json.loads(w) for w in written.to_pylist()] == [
        {"x": 1.5, "b": True}, {"x": None, "b": False}, {"x": None, "b": None}, {"x": None, "b": True},
    ]  # fmt: skip
