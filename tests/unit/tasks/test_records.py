"""Rows from user code, converted to columns: a value that a column cannot hold is refused and never changed."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import numpy as np
import pytest

from tidemark.tasks.records import as_stored, from_dicts, number_columns
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
    kept = as_stored({"n": value, "other": value}, number_columns(COLUMNS))
    assert (kept["n"], type(kept["n"]), kept["other"]) == (2, int, value)


@pytest.mark.parametrize("value", [1.5, Decimal("1.5"), True, "1", math.nan, math.inf, Decimal("inf"), None, []])
def test_should_leave_a_value_that_a_column_of_whole_numbers_cannot_hold(value):
    assert as_stored({"n": value}, number_columns(COLUMNS))["n"] is value


@pytest.mark.parametrize("seed", range(30))
def test_should_keep_every_whole_number_exact_next_to_floats(seed):
    chance = random.Random(seed)
    drawn = [None, 0.0, -7.0, 2.0**62, 2**62 + 1, -(2**63), 2**63 - 1, chance.randint(-(2**63), 2**63 - 1)]
    values = chance.choices(drawn, k=9)
    assert from_dicts([{"n": value} for value in values], COLUMNS, "here").column("n").to_pylist() == values
