"""The order of faults: each kind equally often, and never two at a time on the same target."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter

import pytest
from tests.system.chaos import turns
from tests.system.chaos.faults import UNHARMED
from tests.system.chaos.kinds import KINDS, Kind
from tests.system.chaos.run import kinds_of
from tests.system.chaos.turns import Turns


@pytest.fixture
def kinds(monkeypatch):
    """Three kinds that come with others, and two that come alone."""
    made = {name: Kind(lambda *_: None, name.partition(":")[0]) for name in ("a: 1", "a: 2", "b: 1")}
    made |= {name: Kind(lambda *_: None, "alone", comes_alone=True) for name in ("alone: 1", "alone: 2")}
    monkeypatch.setattr(turns, "KINDS", made)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_should_draw_every_kind_of_fault_equally_often_when_several_are_drawn_together(seed):
    chance = random.Random(seed)
    together = [name for name in KINDS if not KINDS[name].comes_alone]
    dealt = Turns(together, chance)
    came: Counter[str] = Counter()
    for _ in range(300):
        names = dealt.together(chance.choice((1, 3, 4, 5, 6)))
        assert names
        assert len({KINDS[name].acts_on for name in names}) == len(names)
        came.update(names)
    assert came.keys() == set(together)
    # A kind that is passed over keeps its turn: it is never further behind than the round that is being drawn.
    assert max(came.values()) - min(came.values()) <= 2


def test_should_draw_fewer_faults_when_all_remaining_kinds_act_on_one_target():
    dealt = Turns(["broker: all killed", "disk full: broker"], random.Random(1))
    assert sorted(dealt.together(3) + dealt.together(3)) == ["broker: all killed", "disk full: broker"]


@pytest.mark.parametrize("seed", range(20))
def test_should_draw_one_solitary_kind_each_time_all_other_kinds_were_drawn(kinds, seed):
    dealt = Turns(list(kinds), random.Random(seed))
    came: Counter[str] = Counter()
    for _ in range(100):
        names = dealt.together(2)
        assert len(names) == 1 or not any(kinds[name].comes_alone for name in names)
        came.update(names)
    assert abs(came["alone: 1"] - came["alone: 2"]) <= 1
    assert abs(came["alone: 1"] + came["alone: 2"] - came["a: 1"]) <= 2


def test_should_draw_solitary_kinds_when_there_are_no_others(kinds):
    dealt = Turns(["alone: 1", "alone: 2"], random.Random(1))
    assert {tuple(dealt.together(3)) for _ in range(2)} == {("alone: 1",), ("alone: 2",)}


def test_should_choose_the_kinds_of_fault_for_the_guarantee():
    exactly_once = kinds_of(Namespace(only=None, guarantee="exactly_once"))
    at_least_once = kinds_of(Namespace(only=None, guarantee="at_least_once"))
    assert UNHARMED not in exactly_once
    assert {UNHARMED, "driver: SIGKILL"} < {*at_least_once}
    assert {name.partition(":")[0] for name in {*exactly_once} - {*at_least_once}} == {"Airflow", "network", "topic"}
    only = kinds_of(Namespace(only=["driver: SIGKILL"], guarantee="at_least_once"))
    assert sorted(only) == ["driver: SIGKILL", UNHARMED]
