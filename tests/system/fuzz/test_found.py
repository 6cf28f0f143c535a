"""Cases that `make fuzz` once found, shrunk."""

from __future__ import annotations

import pytest
from tests.system.fuzz.case import (
    After,
    AggregateNode,
    Case,
    FoldNode,
    JoinNode,
    ProcessNode,
    Record,
    RekeyNode,
    SelectNode,
    StreamNode,
    SuppressNode,
    TableNode,
    ToNode,
    ToStreamNode,
    ToTableNode,
    WindowOf,
)
from tests.system.fuzz.checking import compared
from tests.system.fuzz.compare import Difference
from tests.system.fuzz.expressions import of

T0, T1, T2 = (StreamNode(f"t{i}", (f"u{i}", f"v{i}")) for i in range(3))
TABLE_0, TABLE_1, TABLE_2 = (TableNode(f"t{i}", (f"u{i}", f"v{i}")) for i in range(3))
HOPPING = AggregateNode(0, WindowOf("hopping", 30, 15, 0), (("a1_1", "max", of("col", "v0")),))


def a_case(nodes, *records):
    """Records are (topic, key, time); a commit after each."""
    rows = {"t0": {"u0": 0, "v0": 0}, "t1": {"u1": 0, "v1": 0}, "t2": {"u2": 0, "v2": 0}}
    return Case(nodes, tuple(Record(topic, key, rows[topic], at, after=After.COMMIT) for topic, key, at in records))


ROADS = {
    "the results of a window, and a fold of them": a_case(
        (T0, HOPPING, ToStreamNode(1), FoldNode(2, None, "tally_to_two", False), JoinNode(2, 3, "left"), ToNode(4)),
        ("t0", "a", 89),
    ),
    "one side by way of another table": a_case(
        (
            T0,
            HOPPING,
            ToStreamNode(1),
            FoldNode(2, None, "tally_to_two", False),
            TABLE_2,
            JoinNode(2, 4, "inner"),
            JoinNode(5, 3, "left"),
            ToNode(6),
        ),
        ("t2", "a", 0),
        ("t0", "a", 89),
    ),
    "the pairs of a join, and a select of them": a_case(
        (
            T0,
            T1,
            JoinNode(0, 1, "left", within=20),
            SelectNode(2, (("x3", of("coalesce", of("col", "u1"), of("lit", 0))),)),
            JoinNode(3, 2, "outer", within=5),
            ToNode(4),
        ),
        ("t0", "a", 0),
        ("t0", "a", 7),
        ("t1", "a", 0),
    ),
    "a joined table that is not kept, through a processor": a_case(
        (
            TABLE_0,
            TABLE_1,
            JoinNode(0, 1, "left"),
            ToStreamNode(2),
            ProcessNode(3, 0),
            JoinNode(4, 2, "inner"),
            ToNode(5),
        ),
        ("t0", "a", 0),
    ),
    "a joined table that is joined again, with what one of its tables is folded to": a_case(
        (
            T0,
            ToTableNode(0),
            TABLE_1,
            ToStreamNode(2),
            FoldNode(3, None, "tally_to_two", False),
            JoinNode(1, 2, "inner"),
            JoinNode(4, 5, "left"),
            ToNode(6),
        ),
        ("t0", "a", 0),
        ("t1", "a", 0),
    ),
    "an aggregate that is kept as rows, through a select": a_case(
        (
            T0,
            AggregateNode(0, None, (("a1_0", "count", of("col", "u0")),)),
            ToStreamNode(1),
            SelectNode(2, (("x3", of("col", "a1_0")),)),
            JoinNode(3, 1, "left"),
            ToNode(4),
        ),
        ("t0", "a", 0),
    ),
}


@pytest.mark.parametrize("case", ROADS.values(), ids=ROADS)
def test_should_equal_kafka_streams_when_branches_of_a_stream_meet(java, case):
    assert compared(case, java).difference is None


def test_should_judge_each_final_result_of_one_record_after_the_ones_before_it(java):
    nodes = (
        T0,
        AggregateNode(0, WindowOf("tumbling", 30, 30, 0), (("n1", "count", None),)),
        SuppressNode(1),
        ToStreamNode(2),
        FoldNode(3, WindowOf("hopping", 10, 7, 0), "tally", False),
        ToNode(4),
    )
    case = a_case(nodes, ("t0", "a", 10), ("t0", "c", 0), ("t0", "a", 199))
    assert compared(case, java).difference is None


def test_should_emit_only_the_longer_session_when_one_closes_and_grows_in_a_batch(java):
    window = WindowOf("session", 20, 0, 100)
    nodes = (T0, AggregateNode(0, window, (("n", "count", None),)), SuppressNode(1), ToNode(2, says_window=True))
    row = {"u0": 0, "v0": 0}
    case = Case(nodes, tuple(Record("t0", "a", row, at) for at in (0, 120, 20)))
    verdict = compared(case, java)
    assert (verdict.classes, verdict.difference) == (frozenset({Difference.COALESCED}), None)


@pytest.mark.parametrize("is_behind_state", [False, True])
def test_should_keep_records_whose_new_key_is_null_when_a_left_join_is_downstream(java, is_behind_state):
    new_key = of("str", of("%", of("col", "u1" if is_behind_state else "u0"), of("lit", 2)))
    nodes = (
        (T0, TABLE_1, JoinNode(0, 1, "left"), RekeyNode(2, new_key), TABLE_2, JoinNode(3, 4, "left"), ToNode(5))
        if is_behind_state
        else (T0, RekeyNode(0, new_key), T1, JoinNode(1, 2, "left", within=5), ToNode(3))
    )
    case = Case(nodes, (Record("t0", "a", {"u0": None, "v0": 0}, 0, after=After.COMMIT),))
    verdict = compared(case, java)
    assert verdict.difference is None
