"""Old values in a new form, field by field."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemark.errors import TaskCorrupted
from tidemark.operations.change.value_conversion import AggregateValues, RowValues
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.tasks.fold import fold_into, result_columns
from tidemark.topology.plan import Aggregate, Fold, Number

N = Aggregate("n", Fold.COUNT, None, Number.LONG)
MOST = Aggregate("most", Fold.MAX, "v", Number.DOUBLE)
MEAN = Aggregate("mean", Fold.MEAN, "v", Number.DOUBLE)
LAST = Aggregate("last", Fold.COLLECT, "v", Number.TEXT, 3)


def layout(*aggregates):
    return ValueLayout(slots_of(aggregates))


def values(aggregates, **columns):
    made = layout(*aggregates)
    rows = len(next(iter(columns.values())))
    return made.encode(fold_into(made, made.empty(rows), pa.table({"__max_ts": [7] * rows, **columns})))


def read(aggregates, encoded):
    made = layout(*aggregates)
    return {name: column.to_pylist() for name, column in result_columns(made, aggregates, made.decode(encoded))}


def converted(before, after, encoded, **filled):
    return AggregateValues(layout(*before), layout(*after), filled)(encoded)


def test_should_fill_a_new_field_with_null_unless_a_value_was_declared():
    old = values([N], n=[3, 4])
    assert read([N, MOST], converted([N], [N, MOST], old)) == {"n": [3, 4], "most": [None, None]}
    assert read([MOST, N], converted([N], [MOST, N], old, most=0.5)) == {"n": [3, 4], "most": [0.5, 0.5]}


def test_should_keep_null_and_find_fields_by_name():
    old = values([N, MOST], n=[1, 2], most=pa.array([None, 7.5], pa.float64()))
    assert read([MOST, N], converted([N, MOST], [MOST, N], old)) == {"n": [1, 2], "most": [None, 7.5]}
    assert read([MOST], converted([N, MOST], [MOST], old)) == {"most": [None, 7.5]}


def test_should_carry_over_values_of_variable_length():
    old = values([N], n=[1])
    with_last = converted([N], [N, LAST], old)
    assert read([N, LAST], with_last) == {"n": [1], "last": [None]}
    assert converted([N, LAST], [N], with_last) == old


def test_should_start_a_mean_at_null_and_carry_over_both_of_its_parts():
    old = {"mean.sum": pa.array([5.0]), "mean.count": pa.array([2])}
    encoded = values([MEAN], **old)
    assert read([N, MEAN], converted([MEAN], [N, MEAN], encoded)) == {"n": [None], "mean": [2.5]}
    assert read([N, MEAN], converted([N], [N, MEAN], values([N], n=[1]))) == {"n": [1], "mean": [None]}


def test_should_add_and_remove_columns_of_rows_and_keep_the_node_mark_last():
    old = [b'{"a":1,"b":"x","__ts":7,"__gone":true}', b"7"]
    new = RowValues({"c": "é"}, ["b"])(old)
    assert json.loads(new[0]) == {"a": 1, "c": "é", "__ts": 7, "__gone": True}
    assert new[0].endswith(b'"__ts":7,"__gone":true}')
    assert new[1] == b"7"
    assert RowValues({}, [])(old) == old


def test_should_report_a_row_that_is_not_json():
    with pytest.raises(TaskCorrupted, match="not JSON"):
        RowValues({"c": 1}, [])([b"{"])
