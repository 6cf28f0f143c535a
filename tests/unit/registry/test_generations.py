"""Rewritten stores: names of generations, copies of an earlier generation, and a start with a recorded description."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.changes import version, version_one
from tests.unit.recovery.test_start_plan import a_copy, a_record, found

from tidemark.errors import StartRefused
from tidemark.names import changelog_topic
from tidemark.recovery.evidence import Watermarks
from tidemark.recovery.start_plan import Refuse, Resume, plan_start
from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.registry.generations import next_generation, with_new_changelogs
from tidemark.registry.operator_rights import operator_topics
from tidemark.registry.reader import describe_resolved, named, resolved
from tidemark.tasks.values import generation_of, value_signature

COUNTS = {"app-in": 2}


@pytest.mark.parametrize(
    ("topics", "recorded", "expected"),
    [
        ([], None, 0),
        (["app-n-changelog"], None, 1),
        (["app-n-changelog"], 0, 1),
        ([], 3, 4),
        (["app-n-changelog", "app-n-changelog-9", "app-n-changelog-10"], 2, 11),
        (["app-nn-changelog", "app-n-changelog-x", "app-n-changelog-0", "other-app-n-changelog", "app.n-changelog"], None, 0),
    ],
)  # fmt: skip
def test_should_choose_a_name_that_was_never_used(topics, recorded, expected):
    assert next_generation("app", "n", topics, recorded) == expected


def test_should_not_use_the_name_of_a_deleted_changelog_again():
    """Copies of the store of that name may be left on other machines: they would be taken for copies of the new one."""
    plan, renamed = version_one("app").plan(), version("app", "2", "m", n="count(*)").plan()
    first = describe_state(plan, COUNTS)
    second = describe_state(renamed, COUNTS).continuing(first)
    assert second.generations == {"n": 0, "m": 0}
    assert Description.from_bytes(second.to_bytes()) == second
    third = describe_state(with_generations(plan, {"n": 4}), COUNTS).continuing(second)
    assert third.generations == {"n": 4, "m": 0}
    assert describe_resolved(renamed, second, COUNTS, {}, {}).generations == {"n": 0, "m": 0}
    assert with_new_changelogs(renamed, second, ["m"], COUNTS).generations == {"n": 0, "m": 1}
    assert operator_topics(plan, second, [], 1).created.changelogs == {"app-n-changelog-1"}
    # Also in the description of a topology that has never changed.
    unchanged = dataclasses.replace(first, generations={})
    assert with_new_changelogs(plan, unchanged, ["n"], COUNTS).generations == {"n": 1}
    assert unchanged.last_generation("m") is None


def test_should_name_the_generations_of_a_changelog():
    assert [changelog_topic("app", "n", number) for number in (0, 1)] == ["app-n-changelog", "app-n-changelog-1"]
    (spec,) = version_one("app").plan().stores
    signatures = [value_signature(dataclasses.replace(spec, generation=number), None) for number in (0, 1, 12)]
    assert [generation_of(signature) for signature in signatures] == [0, 1, 12]
    assert generation_of("1:json:a/b STRING") == 0


def evidence(copies, **store):
    made = found(record=a_record(100), copies=copies, changelog=Watermarks(0, 30))
    changed = dataclasses.replace(made.stores[0], value_layout="generation 1/3:pulses=count<i8", **store)
    return dataclasses.replace(made, stores=(changed,))


@pytest.mark.parametrize("offset", [99, 100, 101])
def test_should_ignore_local_state_of_an_earlier_generation_at_a_start(offset):
    """Its changelog offset, 60, belongs to another topic, so it does not matter that the current one ends at 30."""
    plan = plan_start(evidence((a_copy(offset, changelog_offset=60),)))
    assert isinstance(plan, Resume)
    assert plan.stores["counts"].copy is None


def test_should_refuse_local_state_of_a_later_generation_or_another_layout_at_a_start():
    for layout in ("generation 2/3:pulses=count<i8", "generation 1/3:pulses=sum<i8"):
        plan = plan_start(evidence((a_copy(layout=layout),)))
        assert isinstance(plan, Refuse)
        assert "holds values" in plan.reason


def test_should_use_the_current_topic_names_at_a_start():
    plan = version_one("app").plan()
    held = describe_state(plan, COUNTS)
    assert resolved(plan, None, COUNTS) == plan
    assert resolved(plan, held, COUNTS) == plan
    anew = describe_state(named(plan, held), COUNTS)
    (state,) = anew.subtopologies
    anew = dataclasses.replace(anew, subtopologies=(dataclasses.replace(state, stores=(
        dataclasses.replace(state.stores[0], spec=dataclasses.replace(state.stores[0].spec, generation=4)),
    )),))  # fmt: skip
    assert [spec.generation for spec in resolved(plan, anew, COUNTS).stores] == [4]


@pytest.mark.parametrize("now", [1, 3])
def test_should_refuse_another_number_of_partitions_at_a_start(now):
    plan = version_one("app").plan()
    with pytest.raises(StartRefused, match=rf"app-in has {now} partitions, it had 2 .*rescale run NAME --tasks {now}`"):
        resolved(plan, describe_state(plan, COUNTS), {"app-in": now})


def test_should_refuse_another_state_at_a_start_and_name_it():
    held = describe_state(version_one("app").plan(), COUNTS)
    for topology, what in (
        (version("app", "2", "n", n="count(*)", most="max(v)"), "store n: its existing keys have no value for the new"),
        (version("app", "2", "m", n="count(*)"), "store n: the new version has no such store"),
        (version("app", "1", "n", n="max(v)"), r"store n: its field n was count\(\*\)"),
    ):
        with pytest.raises(StartRefused, match=rf"{what}.*`tidemark upgrade plan NAME`"):
            resolved(topology.plan(), held, COUNTS)
    resolved(version("app", "2", "n", n="count(*)").plan(), held, COUNTS)
