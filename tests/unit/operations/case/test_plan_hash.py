"""The hash of a plan: equal for equal plans and different for others; and the difference of two plans as text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
from tests.support.changes import version, version_one

from tidemark.names import TopicPartition
from tidemark.operations.case.case import Case
from tidemark.operations.case.change_steps import RESET, effects
from tidemark.operations.case.plan_hash import canonical, differences, plan_content, plan_hash
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.operations.change.reset_plan import ResetPlan, SourceReset
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.registry.compatibility import StoreChange, StoreChangeKind
from tidemark.topology.plan import Fold

CASE = Case("c1", RESET, "counts", "app", {"to": "earliest", "state": "empty"}, False, "why", 5, "run-1")
TOPOLOGY = version_one("app").plan()
EFFECTS = {"offsets": {"in[0]": 0, "in[1]": 7}, "emptied": ["n"]}


def content(case=CASE, topology=TOPOLOGY, state=None, doing=EFFECTS):
    return plan_content(case, topology, state, doing)


def test_should_give_the_same_hash_in_every_release():
    digest = hashlib.sha256(rb'{"a":{"\u00e4":"x"},"b":[1,2.5,null,true]}').hexdigest()
    assert plan_hash({"b": [1, 2.5, None, True], "a": {"ä": "x"}}) == digest


def test_should_not_depend_on_order_or_on_who_asked_when_and_why():
    turned = dict(reversed(EFFECTS.items()))
    again = replace(CASE, case_id="c2", reason="another", asked_ms=9, asked=dict(reversed(CASE.asked.items())))
    assert plan_hash(content()) == plan_hash(content(again, version_one("app").plan(), None, turned))
    assert plan_hash({"a": frozenset({"x", "y"})}) == plan_hash({"a": {"y", "x"}}) == plan_hash({"a": ["x", "y"]})


@pytest.mark.parametrize(
    "other",
    [
        content(replace(CASE, kind="rescale")),
        content(replace(CASE, asked={**CASE.asked, "state": "keep"})),
        content(replace(CASE, application_id="other")),
        content(topology=replace(TOPOLOGY, version="2")),
        content(topology=version("app", "1", "m", n="count(*)").plan()),
        content(topology=version("app", "1", "n", n="count(*)", most="max(v)").plan()),
        content(state={"generation": 1}),
        content(doing={**EFFECTS, "offsets": {"in[0]": 0, "in[1]": 8}}),
    ],
    ids=["kind", "option", "application", "version", "store", "aggregate", "state", "offset"],
)
def test_should_differ_when_anything_relevant_differs(other):
    assert plan_hash(other) != plan_hash(content())


def test_should_distinguish_nodes_with_equal_fields():
    @dataclass(frozen=True)
    class Left:
        node: str

    @dataclass(frozen=True)
    class Right:
        node: str

    assert plan_hash({"node": Left("a")}) != plan_hash({"node": Right("a")})


def test_should_accept_only_values_with_one_canonical_form():
    assert canonical({1: (Fold.COUNT, None)}) == {"1": ["count", None]}
    with pytest.raises(TypeError, match="a plan holds a object"):
        canonical({"a": object()})


def test_should_name_differences_with_the_simple_ones_first():
    now = content(topology=version("app", "2", "n", n="count(*)", most="max(v)").plan())
    found = differences(content(), now)
    assert found[0] == 'topology.version is "2" now and was "1" when the plan was made'
    assert any(line.startswith("topology.subtopologies.") and "most" in line for line in found)
    assert differences(content(), content()) == []
    gone = differences({"stores": [{"name": "a"}, {"name": "b"}]}, {"stores": [{"name": "b"}, {"name": "c"}]})
    assert gone == [
        'stores.a is missing now and was {"name": "a"} when the plan was made',
        'stores.c is new: {"name": "c"}',
    ]
    many = differences({str(n): 0 for n in range(8)}, {str(n): 1 for n in range(8)})
    assert (len(many), many[-1]) == (6, "3 more differences")


def source(to_offset, from_offset=5, topic="in", is_internal=False, asked_offset=None):
    asked_offset = to_offset if asked_offset is None else asked_offset
    return SourceReset(TopicPartition(topic, 0), from_offset, to_offset, is_internal, asked_offset)


RESET_PLAN = ResetPlan("app", ResetTo.LATEST, StateAfter.EMPTY, (source(9), source(3, 1, "r", True)), (), ("n",), ())
AT_A_TIME = replace(RESET_PLAN, to=ResetTo.TIME)
FROM_THE_START = replace(RESET_PLAN, to=ResetTo.EARLIEST, sources=(source(1), source(3, 1, "r", True)))
GIVEN = replace(FROM_THE_START, to=ResetTo.OFFSETS)
RESCALE_PLAN = RescalePlan("app", 3, {0: 2}, {"in": 2}, ("n",), {"r": 4}, {"in": 7}, 60, ())
UPGRADE_PLAN = UpgradePlan(
    "app",
    "1",
    "2",
    (),
    (StoreChange("n", "total", StoreChangeKind.COPIED, "renamed from n"),),
    {"n": 4},
    {"in": 7},
    ("app-n-changelog",),
    (),
)


@pytest.mark.parametrize(
    ("plan", "same", "others"),
    [
        (
            RESET_PLAN,
            # More records arrived, all of which it has read.
            replace(RESET_PLAN, sources=(source(30, 30), RESET_PLAN.sources[1])),
            [
                AT_A_TIME,
                # The topic was created again.
                replace(RESET_PLAN, sources=(source(9, 12), RESET_PLAN.sources[1])),
                replace(RESET_PLAN, state=StateAfter.KEEP, emptied=()),
            ],
        ),
        (
            AT_A_TIME,
            # It read on, and so did what lies between sub-topologies; a time is given as offsets when it is done.
            replace(AT_A_TIME, to=ResetTo.OFFSETS, sources=(source(9, 8), source(6, 5, "r", True))),
            [
                replace(AT_A_TIME, sources=(source(10), AT_A_TIME.sources[1])),
                # The stream has read beyond the plan's offset, so the reset would repeat records that the plan did not name.
                replace(AT_A_TIME, sources=(source(9, 12), AT_A_TIME.sources[1])),
                replace(AT_A_TIME, state=StateAfter.KEEP, emptied=()),
                replace(AT_A_TIME, rewritten=("n",)),
            ],
        ),
        (
            FROM_THE_START,
            # Retention has deleted records meanwhile.
            replace(FROM_THE_START, sources=(source(2), FROM_THE_START.sources[1])),
            [GIVEN, replace(FROM_THE_START, state=StateAfter.KEEP, emptied=())],
        ),
        (
            GIVEN,
            replace(GIVEN, sources=(source(2, asked_offset=1), GIVEN.sources[1])),
            [replace(GIVEN, sources=(source(2), GIVEN.sources[1]))],
        ),
        (
            RESCALE_PLAN,
            replace(RESCALE_PLAN, unread={"r": 9}, waiting={"in": 0}, spread_ms=0),
            [
                replace(RESCALE_PLAN, tasks=4),
                replace(RESCALE_PLAN, before={0: 3}),
                replace(RESCALE_PLAN, routers={"in": 3}),
                replace(RESCALE_PLAN, stores=()),
            ],
        ),
        (
            UPGRADE_PLAN,
            replace(UPGRADE_PLAN, keys={"n": 90}, waiting={}),
            [
                replace(UPGRADE_PLAN, to_version="3"),
                replace(UPGRADE_PLAN, changes=(replace(UPGRADE_PLAN.changes[0], change_kind=StoreChangeKind.DROPPED),)),
                replace(UPGRADE_PLAN, left=()),
            ],
        ),
    ],
    ids=["reset to the end", "reset to a time", "reset from the start", "reset to given offsets", "rescale", "upgrade"],
)
def test_should_cover_what_a_change_does_but_not_what_moves_while_the_application_runs(plan, same, others):
    assert plan_hash(effects(same)) == plan_hash(effects(plan))
    for other in others:
        assert plan_hash(effects(other)) != plan_hash(effects(plan)), other
