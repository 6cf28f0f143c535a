"""The report at the end of a run, and whether the run has passed."""

from __future__ import annotations

import pytest
from tests.system.chaos.course import Course, table_of_held, verdict, verdict_of_held
from tests.system.chaos.faults import UNHARMED, Longest
from tests.system.chaos.findings import Findings
from tests.system.chaos.kinds import KINDS


def test_should_attribute_repeated_outputs_to_the_fault_before_them():
    course = Course()
    course.rounds = [("a", {("out", 0): 0, ("out", 1): 5}), ("b", {("out", 0): 10, ("out", 1): 5})]
    course.attribute([("out", 0, 9), ("out", 0, 10), ("out", 1, 5), ("out", 1, 7)])
    assert course.again == {"a": 1, "b": 3}


CAME = ["driver: SIGKILL", "broker: all killed", "standby: SIGKILL", UNHARMED]


def held_course(**again):
    course = Course()
    for kind in CAME:
        course.recoveries[kind].append(1.0)
    course.again.update({"driver: SIGKILL": 50, "broker: all killed": 7} | again)
    return course


def test_should_expect_repeated_outputs_after_every_kind_of_fault_that_interrupts_a_commit():
    line, is_right = verdict_of_held(held_course(), Findings(duplicated=60), CAME)
    assert (line, is_right) == ("chaos at_least_once: classes=2 with_duplicates=2 lost=0 wrong=0 stuck=0", True)


@pytest.mark.parametrize(
    ("again", "found", "stuck", "summary"),
    [
        ({"driver: SIGKILL": 0}, {}, [], "classes=2 with_duplicates=1 lost=0 wrong=0 stuck=0"),
        ({UNHARMED: 1}, {}, [], "classes=2 with_duplicates=2 lost=0 wrong=0 stuck=0"),
        ({}, {"lost": 1}, [], "classes=2 with_duplicates=2 lost=1 wrong=0 stuck=0"),
        ({}, {"wrong": 1}, [], "classes=2 with_duplicates=2 lost=0 wrong=1 stuck=0"),
        ({}, {}, ["x"], "classes=2 with_duplicates=2 lost=0 wrong=0 stuck=1"),
    ],
)
def test_should_not_pass_at_least_once_when_anything_is_wrong(again, found, stuck, summary):
    course = held_course()
    for kind, number in again.items():
        course.again[kind] = number
    course.stuck = stuck
    assert verdict_of_held(course, Findings(**found), CAME) == (f"chaos at_least_once: {summary}", False)


@pytest.mark.parametrize(("faults", "records"), [(0, 9), (1, 0), (1, 9)])
def test_should_not_pass_when_nothing_was_brought_about_or_fed(faults, records):
    course = Course()
    course.recoveries["driver: SIGKILL"] = [1.0] * faults
    _, is_right = verdict(course, Findings(records=records))
    assert is_right is (faults > 0 and records > 0)
    assert verdict_of_held(course, Findings(), ["standby: SIGKILL"])[1] is False


def test_should_say_why_a_kind_of_fault_does_not_interrupt_a_held_commit():
    rows = table_of_held(held_course())[2:]
    assert rows[1] == "| driver: SIGKILL | 50 |  |"
    assert rows[2] == f"| standby: SIGKILL | 0 | {KINDS['standby: SIGKILL'].spares} |"
    assert rows[3].startswith(f"| {UNHARMED} | 0 |")


def test_should_use_the_longest_duration_of_a_fault_when_a_commit_is_held():
    assert [Longest(1).uniform(5, 60), Longest(2).uniform(5, 60)] == [60, 60]
