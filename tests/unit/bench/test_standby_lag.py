"""The age of the oldest copy of a standby: a copy that does not answer grows older."""

from __future__ import annotations

import pytest
from bench.standby_lag import CopyAges


def test_should_count_the_oldest_of_the_copies_that_answer() -> None:
    assert CopyAges().oldest_s({"0_0": 0.5, "0_1": 2.0}, 100.0) == pytest.approx(2.0)


def test_should_know_no_age_before_the_standby_tells_of_a_copy() -> None:
    assert CopyAges().oldest_s({}, 100.0) is None


@pytest.mark.parametrize(
    "unanswered", [{"0_0": 0.1, "0_1": None}, {"0_0": 0.1}, {}], ids=["a copy without answer", "left out", "no answer"]
)
def test_should_count_a_copy_that_does_not_answer_as_lagging_since_its_last_answer(
    unanswered: dict[str, float | None],
) -> None:
    ages = CopyAges()
    ages.oldest_s({"0_0": 0.5, "0_1": 0.7}, 100.0)
    assert ages.oldest_s(unanswered, 104.0) == pytest.approx(4.7)
    assert ages.oldest_s({"0_0": 0.1, "0_1": 0.2}, 105.0) == pytest.approx(0.2)


def test_should_count_a_copy_that_has_never_answered_since_it_was_first_asked() -> None:
    ages = CopyAges()
    assert ages.oldest_s({"0_0": 0.5, "0_1": None}, 100.0) == pytest.approx(0.5)
    assert ages.oldest_s({"0_0": 0.5, "0_1": None}, 103.0) == pytest.approx(3.0)
