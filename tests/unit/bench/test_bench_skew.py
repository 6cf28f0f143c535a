"""Skewed keys follow Zipf's law, and each depends on the number of its event alone."""

from dataclasses import replace

import numpy as np
import pytest
from bench.cases import CASES
from bench.skew import zipf

CASE = replace(CASES["skewed"], keys=1_000)


def test_should_draw_each_key_as_often_as_the_law_says() -> None:
    drawn = np.bincount(zipf(CASE, np.arange(400_000)), minlength=CASE.keys)
    weights = np.arange(1, CASE.keys + 1) ** -1.1
    expected = 400_000 * weights / weights.sum()
    assert len(drawn) == CASE.keys
    # Four standard deviations of a count.
    assert (np.abs(drawn - expected) < 4 * np.sqrt(expected) + 1).all()


@pytest.mark.parametrize("first", [0, 1, 999])
def test_should_draw_the_same_key_for_a_number_in_any_block(first: int) -> None:
    assert zipf(CASE, np.arange(first, 2_000)).tolist() == zipf(CASE, np.arange(2_000))[first:].tolist()


def test_should_have_another_order_of_keys_than_turns() -> None:
    neighbours = zipf(CASE, np.arange(10_000))
    assert np.corrcoef(neighbours[:-1], neighbours[1:])[0, 1] < 0.05
