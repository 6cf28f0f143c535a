"""What the plan of a repair says of stores that are computed again by the user's functions."""

from __future__ import annotations

import pytest

from tidemark.names import TaskId
from tidemark.operations.change.repair import Repair, _Part
from tidemark.operations.change.repair_plan import TaskRepair
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.topology.builder import Topology

KEEP = "tests.support.reducers:keep_the_later"
APPEND, START = "tests.support.reducers:append", "tests.support.reducers:nothing_seen"


def planned(source, fold):
    topology = Topology("app")
    fold(topology.stream("in", schema="id STRING, v BIGINT", key="id").group_by_key()).to("out")
    plan = topology.plan()
    repair = Repair(plan, None, lambda: 0, [], source, None, [].append, [].append)
    summary = TaskRepair("0_0", source or SourceOfState.LOCAL, "somewhere", is_judge=True, differing=0)
    return repair._planned(plan, [_Part(TaskId(0, 0), plan.stores[0], None, summary)])


def reduced(grouped):
    return grouped.reduce(KEEP, store="s")


def aggregated(grouped):
    return grouped.aggregate(aggregator=APPEND, initializer=START, emits="seen STRING", store="s")


def counted(grouped):
    return grouped.count(name="n", store="s")


@pytest.mark.parametrize(("fold", "functions"), [(reduced, [KEEP]), (aggregated, [APPEND, START])])
def test_should_warn_that_the_code_of_functions_may_have_changed_since_the_records_were_processed(fold, functions):
    (warning,) = planned(SourceOfState.SOURCE, fold).warnings
    assert warning.startswith(f"s: computed again with the present code of {', '.join(functions)}; whether")


@pytest.mark.parametrize(
    ("source", "fold"), [(SourceOfState.SOURCE, counted), (None, reduced), (SourceOfState.LOCAL, aggregated)]
)
def test_should_not_warn_where_no_function_computes_what_is_right(source, fold):
    assert planned(source, fold).warnings == []
