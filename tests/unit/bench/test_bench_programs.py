"""Each case of the benchmark names programs that exist, and the topics that they read and write."""

from importlib import import_module

import numpy as np
import pytest
from bench.case import Case
from bench.cases import CASES
from bench.machine import ROOT

from tidemark.kafka.topics import user_topics


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_should_name_a_topology_and_a_class_that_exist(case: Case) -> None:
    program = case.program
    plan = import_module(f"bench.topologies.{program.topology}").topology().plan()
    assert plan.application_id == program.application_id
    assert set(user_topics(plan)) == {*program.sources, program.sink}
    assert program.peer is None or (ROOT / "bench" / "peers" / f"{program.peer}.java").exists()
    assert {block.topic for block in program.records(case, 0, np.arange(10))} == set(program.sources)


def test_should_compare_with_the_same_topology_at_least_once() -> None:
    both = [
        import_module(f"bench.topologies.pulse_counting{name}").topology().plan() for name in ("", "_at_least_once")
    ]
    assert [plan.guarantee.value for plan in both] == ["exactly_once", "at_least_once"]
    assert both[0].application_id == both[1].application_id
    assert both[0].stores == both[1].stores
