"""The order of faults: each kind as often as the others, and never two at a time that act on one thing."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.chaos.faults import FAULTS, SPARED, UNHARMED, Longest, acts_on
from tests.chaos.findings import Findings
from tests.chaos.run import Course, Turns, table_of_held, verdict_of_held


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


KINDS = ["driver: SIGKILL", "broker: all killed", "standby: SIGKILL", UNHARMED]


def held_course(**again):
    course = Course()
    for kind in KINDS:
        course.recoveries[kind].append(1.0)
    course.again.update({"driver: SIGKILL": 50, "broker: all killed": 7} | again)
    return course


def test_should_want_outputs_again_behind_every_kind_that_ends_a_commit():
    line, is_right = verdict_of_held(held_course(), Findings(duplicated=60), KINDS)
    assert (line, is_right) == ("chaos at_least_once: classes=2 with_duplicates=2 lost=0 wrong=0 stuck=0", True)


@pytest.mark.parametrize(
    ("again", "found", "stuck", "told"),
    [
        ({"driver: SIGKILL": 0}, {}, [], "classes=2 with_duplicates=1 lost=0 wrong=0 stuck=0"),
        ({UNHARMED: 1}, {}, [], "classes=2 with_duplicates=2 lost=0 wrong=0 stuck=0"),
        ({}, {"lost": 1}, [], "classes=2 with_duplicates=2 lost=1 wrong=0 stuck=0"),
        ({}, {"wrong": 1}, [], "classes=2 with_duplicates=2 lost=0 wrong=1 stuck=0"),
        ({}, {}, ["x"], "classes=2 with_duplicates=2 lost=0 wrong=0 stuck=1"),
    ],
)
def test_should_not_pass_at_least_once_where_anything_is_off(again, found, stuck, told):
    course = held_course()
    for kind, number in again.items():
        course.again[kind] = number
    course.stuck = stuck
    assert verdict_of_held(course, Findings(**found), KINDS) == (f"chaos at_least_once: {told}", False)


def test_should_say_of_each_kind_that_spares_a_held_commit_why():
    assert SPARED.keys() < FAULTS.keys()
    rows = table_of_held(held_course())[2:]
    assert rows[1] == "| driver: SIGKILL | 50 |  |"
    assert rows[2] == f"| standby: SIGKILL | 0 | {SPARED['standby: SIGKILL']} |"
    assert rows[3].startswith(f"| {UNHARMED} | 0 |")


def test_should_bring_about_the_longest_fault_where_a_commit_is_held():
    assert [Longest(1).uniform(5, 60), Longest(2).uniform(5, 60)] == [60, 60]
