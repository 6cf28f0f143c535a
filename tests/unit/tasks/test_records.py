"""Rows from user code, converted to columns: a value that a column cannot hold is refused and never changed."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import numpy as np
import pytest

from tidemark.tasks.records import StoredForm, from_dicts, to_dicts
from tidemark.tasks.refused_rows import UnusableValue
from tidemark.topology.plan import Column

COLUMNS = [Column("n", "BIGINT")]


@pytest.mark.parametrize(
    "value", [1.5, np.float64(-0.25), Decimal("1.5"), True, "1", float("nan"), float("inf"), 1e30, 2**63]
)
def test_should_refuse_a_value_that_is_not_a_whole_number_of_the_columns_size(value):
    with pytest.raises(UnusableValue, match=r"^here: column n is int64 and cannot hold a value: "):
        from_dicts([{"n": 3}, {"n": value}, None], COLUMNS, "here")


@pytest.mark.parametrize("value", [2.0, np.float64(2), np.int32(2), Decimal("2.00"), 2])
def test_should_accept_a_whole_number_of_any_type(value):
    assert from_dicts([{"n": value}, {}], COLUMNS, "here").column("n").to_pylist() == [2, None]


@pytest.mark.parametrize("value", [2.0, np.float64(2), np.int32(2), Decimal("2.00"), 2])
def test_should_convert_a_whole_number_of_any_type_to_the_one_that_a_store_returns(value):
    kept = StoredForm(COLUMNS, "here").of({"n": value, "other": value})
    assert (kept["n"], type(kept["n"]), kept["other"]) == (2, int, value)


class Text(str):
    """A text of another type than `str`."""


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BOOLEAN", True), ("BOOLEAN", np.True_), ("TINYINT", -128), ("SMALLINT", 2**15 - 1), ("INT", 7.0),
        ("BIGINT", -(2**63)), ("BIGINT", np.True_), ("FLOAT", 0.1), ("FLOAT", 3), ("DOUBLE", 1), ("DOUBLE", True),
        ("DOUBLE", np.float32(0.1)), ("STRING", "\u00e9"), ("STRING", b"bytes"), ("STRING", Text("t")),
        ("STRING", None),
    ],
)  # fmt: skip
def test_should_convert_a_value_to_the_object_that_a_store_returns(kind, value):
    columns = [Column("v", kind)]
    kept = StoredForm(columns, "here").of({"v": value})
    (stored,) = to_dicts(from_dicts([{"v": value}], columns, "here"))
    assert (kept, type(kept["v"])) == (stored, type(stored["v"]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("BIGINT", value) for value in [1.5, Decimal("1.5"), True, "1", math.nan, Decimal("inf"), [], 2**63]),
        ("TINYINT", 128), ("TINYINT", -129), ("INT", 2.0**31), ("BOOLEAN", 1), ("DOUBLE", "1"), ("DOUBLE", Decimal("1.5")),
        ("FLOAT", []), ("STRING", 1), ("STRING", "\ud800"), ("STRING", b"\xff"),
    ],
)  # fmt: skip
def test_should_refuse_a_value_that_the_column_of_a_store_cannot_hold(kind, value):
    with pytest.raises(UnusableValue, match=r"^here: column v is .* and cannot hold a value: "):
        StoredForm([Column("v", kind)], "here").of({"v": value})


@pytest.mark.parametrize("seed", range(30))
def test_should_keep_every_whole_number_exact_next_to_floats(seed):
    chance = random.Random(seed)
    drawn = [None, 0.0, -7.0, 2.0**62, 2**62 + 1, -(2**63), 2**63 - 1, chance.randint(-(2**63), 2**63 - 1)]
    values = chance.choices(drawn, k=9)
    assert from_dicts([{"n": value} for value in values], COLUMNS, "here").column("n").to_pylist() == values
