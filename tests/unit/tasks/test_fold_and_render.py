"""Merging of partial results and writing of JSON, by columns; each compared with plain Python."""

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
from tidemark.tasks.merge import merge_groups
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
        "__max_ts": pa.array([len(values)], pa.int64()),
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
def test_should_give_the_same_result_for_any_division_into_batches(batches):
    values = [v for batch in batches for v in batch]
    known = [v for v in values if v is not None]
    result = folded(*batches)
    assert result["n"] == len(values)
    assert result["total"] == (sum(known) if known else None)
    assert result["least"] == (min(known) if known else None)
    assert result["most"] == (float(max(known)) if known else None)
    assert result["middle"] == (pytest.approx(sum(known) / len(known)) if known else None)


def test_should_not_use_zero_as_the_minimum_of_positive_or_the_maximum_of_negative_values():
    assert folded([5], [7])["least"] == 5
    assert folded([-5], [-7])["most"] == -5.0


def test_should_keep_the_known_value_when_a_batch_has_only_nulls():
    result = folded([3], [None])
    assert (result["n"], result["total"], result["least"]) == (2, 3, 3)


def test_should_keep_the_newest_timestamp_of_all_batches():
    stored = LAYOUT.empty(1)
    for values in ([1, 2, 3], [4]):
        stored = fold_into(LAYOUT, stored, partial_of(values))
    assert stored["ts"].tolist() == [3]
    both = np.concatenate([fold_into(LAYOUT, LAYOUT.empty(1), partial_of(values)) for values in ([1, 2], [3, 4, 5])])
    assert merge_groups(LAYOUT, both, np.array([0]))["ts"].tolist() == [3]


EXTREMES = (Aggregate("low", Fold.MIN, "x", Number.DOUBLE), Aggregate("high", Fold.MAX, "x", Number.DOUBLE))
DOUBLES = st.lists(st.sampled_from([None, math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5]), min_size=1, max_size=3)


def in_sparks_order(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


@given(st.lists(DOUBLES, min_size=1, max_size=4), st.booleans())
def test_should_treat_nan_as_the_greatest_number_for_any_division_into_batches(batches, in_groups):
    layout = ValueLayout(slots_of(EXTREMES))
    partials = []
    for batch in batches:
        known = sorted((v for v in batch if v is not None), key=in_sparks_order)
        low, high = (known[0], known[-1]) if known else (None, None)
        columns = {"low": pa.array([low], pa.float64()), "high": pa.array([high], pa.float64())}
        partials.append(pa.table({"__max_ts": [1], **columns}))
    if in_groups:
        folded = np.concatenate([fold_into(layout, layout.empty(1), partial) for partial in partials])
        merged = merge_groups(layout, folded, np.array([0]))
    else:
        merged = layout.empty(1)
        for partial in partials:
            merged = fold_into(layout, merged, partial)
    known = sorted((v for batch in batches for v in batch if v is not None), key=in_sparks_order)
    expected = [repr(v + 0.0) for v in (known[0], known[-1])] if known else ["None", "None"]
    assert [repr(c[0].as_py()) for _, c in result_columns(layout, EXTREMES, merged)] == expected


def test_should_encode_a_count_as_schema_mask_timestamp_and_eight_bytes():
    layout = ValueLayout(slots_of(AGGREGATES[:1]))
    new = fold_into(layout, layout.decode([None]), pa.table({"__max_ts": [515], "n": [258]}))
    assert layout.encode(new) == [b"\x03\x01\x03\x02\x00\x00\x00\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00"]


@pytest.mark.parametrize("value", [b"", b"\x03\x01", b"\x01\x01" + bytes(8), b"\x02\x01" + bytes(16)])
def test_should_refuse_values_of_another_width_or_schema(value):
    with pytest.raises(TaskCorrupted):
        ValueLayout(slots_of(AGGREGATES[:1])).decode([value])


def test_should_order_window_keys_by_key_then_time_and_decode_them():
    starts = np.array([60_000, 0, 60_000], dtype=np.int64)
    keys = window_keys(pa.array(["b", "a", "a"]), starts)
    assert [split_window_key(k) for k in sorted(keys)] == [(b"a", 0), (b"a", 60_000), (b"b", 60_000)]


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_should_write_any_key_as_json_that_a_parser_reads_back(keys):
    written = json_records([("k", pa.array(keys, pa.string())), ("n", pa.array(range(len(keys))))])
    assert [json.loads(w) for w in written.to_pylist()] == [{"k": k, "n": i} for i, k in enumerate(keys)]


def test_should_write_numbers_that_json_lacks_as_strings():
    written = json_records(
        [("x", pa.array([1.5, math.nan, math.inf, -math.inf, None])), ("b", pa.array([True, False, None, True, True]))]
    )
    assert [json.loads(w) for w in written.to_pylist()] == [
        {"x": 1.5, "b": True}, {"x": "NaN", "b": False}, {"x": "Infinity", "b": None}, {"x": "-Infinity", "b": True},
        {"x": None, "b": True},
    ]  # fmt: skip
