"""The order of faults: each kind as often as the others, and never two at a time that act on one thing."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.chaos.faults import FAULTS, acts_on
from tests.chaos.run import Course, Turns


@pytest.mark.parametrize("seed", range(20))
def test_should_bring_every_kind_as_often_as_the_others_though_some_come_together(seed):
    chance = random.Random(seed)
    turns = Turns(list(FAULTS), chance)
    came: Counter[str] = Counter()
    for _ in range(300):
        names = turns.together(chance.choice((1, 3, 4, 5, 6)))
        assert names
        assert len({acts_on(name) for name in names}) == len(names)
        came.update(names)
    assert came.keys() == FAULTS.keys()
    # A kind that is passed over keeps its turn: it is never further behind than the round that is being drawn.
    assert max(came.values()) - min(came.values()) <= 2


def test_should_draw_fewer_where_all_that_is_left_acts_on_one_thing():
    turns = Turns(["broker: all killed", "disk full: broker"], random.Random(1))
    assert sorted(turns.together(3) + turns.together(3)) == ["broker: all killed", "disk full: broker"]


def test_should_count_what_came_again_with_the_fault_before_it():
    course = Course()
    course.rounds = [("a", {("out", 0): 0, ("out", 1): 5}), ("b", {("out", 0): 10, ("out", 1): 5})]
    course.attribute([("out", 0, 9), ("out", 0, 10), ("out", 1, 5), ("out", 1, 7)])
    assert course.again == {"a": 1, "b": 3}
