"""A fault that finds nothing to harm says so, and does not count as one that the application has survived."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.system.chaos import faults, run
from tests.system.chaos.course import Course, verdict
from tests.system.chaos.findings import Findings
from tests.system.chaos.kinds import KINDS, Kind, NothingToHarm
from tests.system.chaos.supervised import Supervised
from tests.system.chaos.world import World

CHANCE = random.Random(1)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """An application of which nothing runs."""
    monkeypatch.setattr(faults, "_ARMED_S", 0.05)
    monkeypatch.setattr(faults, "_HELD_S", 0.05)
    instances = {number: Supervised(f"instance-{number}", [], {}, tmp_path / "log") for number in range(2)}
    cluster = SimpleNamespace(node_ids=(1, 2, 3), start=lambda: None)
    return SimpleNamespace(
        application_id="chaos",
        arm_file=tmp_path / "arm.json",
        brokers=SimpleNamespace(cluster=cluster, proxies={}, alive=list),
        held=None,
        instances=instances,
        standby=Supervised("standby", [], {}, tmp_path / "log"),
        state_dir=lambda machine: tmp_path / "disks" / machine,
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in KINDS
        if name.partition(":")[0] in ("driver", "both drivers", "JVM", "standby", "state lost", "clock")
    ]
    + ["broker: all killed", "network: a late end of a transaction, then SIGKILL"],
)
def test_should_say_that_there_is_nothing_to_harm_when_nothing_runs(world, name):
    with pytest.raises(NothingToHarm):
        KINDS[name].fault(world, CHANCE)


@pytest.mark.parametrize("name", ["second copy of an instance", "third instance comes and goes"])
def test_should_say_that_another_process_did_not_come(world, name, monkeypatch):
    monkeypatch.setattr(faults, "_COMES_S", 0.05)
    process = SimpleNamespace(poll=lambda: None)
    world.instances = {0: SimpleNamespace(process=process), 1: SimpleNamespace(process=process)}
    world.in_place = lambda: world.instances.update(
        {0: SimpleNamespace(process=None), 1: SimpleNamespace(process=None)}
    )
    world.guest = lambda *_: nullcontext(SimpleNamespace(process=SimpleNamespace(poll=lambda: None)))
    world.runs, world.members = lambda *_: False, lambda: 2
    with pytest.raises(NothingToHarm, match="did not"):
        KINDS[name].fault(world, CHANCE)


def run_with(monkeypatch, fault, recovers=True):
    monkeypatch.setitem(KINDS, "x: a fault", Kind(fault, "x"))
    monkeypatch.setattr(run, "_PAUSE_S", (0, 0))
    monkeypatch.setattr(run, "_STUCK_S", 0)
    world = SimpleNamespace(
        ends=lambda _places: {},
        brokers=SimpleNamespace(cluster=SimpleNamespace(start=lambda: None)),
        committed_from_now=lambda: lambda: recovers,
        progress_report=lambda: "no progress",
        feeding=SimpleNamespace(sent=0),
    )
    course = Course()
    options = Namespace(guarantee="exactly_once", minutes=0, seed=1, calm=0.0)
    run.run_faults(world, course, ["x: a fault"], options, Console(quiet=True))
    return course


def test_should_try_a_fault_again_that_found_nothing_to_harm(monkeypatch):
    tried = []

    def fault(_world, _chance):
        tried.append(1)
        if len(tried) < 3:
            raise NothingToHarm("it does not run")

    course = run_with(monkeypatch, fault)
    assert (len(tried), course.faults, course.missed) == (3, 1, {"x: a fault": 2})
    assert verdict(course, Findings(records=9))[1] is True


def test_should_not_say_of_a_fault_from_which_nothing_recovered_that_it_never_happened(monkeypatch):
    tried = []

    def fault(_world, _chance):
        tried.append(1)
        if len(tried) < 2:
            raise NothingToHarm("it does not run")

    course = run_with(monkeypatch, fault, recovers=False)
    # The first time it harmed nothing, and the stream did not recover then either.
    assert course.stuck == ["x: a fault", "x: a fault"]
    assert (course.missed, course.never_happened) == ({"x: a fault": 1}, [])
    assert verdict(course, Findings(records=9))[1] is False


def test_should_not_pass_when_a_fault_never_found_anything_to_harm(monkeypatch):
    def fault(_world, _chance):
        raise NothingToHarm("it does not run")

    course = run_with(monkeypatch, fault)
    assert (course.faults, course.kinds, course.never_happened) == (0, 0, ["x: a fault"])
    course.recoveries["another"].append(1.0)
    assert verdict(course, Findings(records=9))[1] is False


@pytest.mark.parametrize("role", ["instances", "guests", "the standby"])
def test_should_judge_how_every_process_of_the_application_ended(role):
    roles = {"instances": [0, -9, 20], "guests": [20, -15], "the standby": [10, -9]}

    def judged(ends):
        world = SimpleNamespace(
            instances={0: SimpleNamespace(ends=ends["instances"])},
            _ends_of_guests=Counter(ends["guests"]),
            standby=SimpleNamespace(ends=ends["the standby"]),
        )
        world.ends_by_role = lambda: World.ends_by_role(world)
        return World.refusals(world)

    assert judged(roles) == []
    roles[role] += [30, 1]
    assert judged(roles) == [f"{role} ended with 1, 1 times", f"{role} ended with 30, 1 times"]
