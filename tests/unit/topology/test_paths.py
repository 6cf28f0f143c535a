"""Branches of one record that meet again: which are refused, which are accepted, and how their results are numbered."""

from __future__ import annotations

import pytest

from tidemark.errors import InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.paths import RecordPaths

SCHEMA = "id STRING, ward STRING, beat BIGINT"


def a_stream(topology: Topology):
    return topology.stream("beats", schema=SCHEMA, key="id")


def counted(stream, name):
    return stream.group_by_key().count(name=name, store=name)


def the_sub_topology(topology: Topology):
    (found,) = topology.plan().subtopologies
    return found


def test_should_refuse_branches_that_cross():
    topology = Topology("app")
    beats = a_stream(topology)
    first, between, last = (counted(beats, name) for name in ("first", "between", "last"))
    first.join(last).join(between).to("out")
    with pytest.raises(InvalidTopology, match=r"paths that cross.*write everything that leads to one side before"):
        topology.plan()


def test_should_accept_the_same_branches_when_one_side_is_written_first():
    topology = Topology("app")
    beats = a_stream(topology)
    first, last, between = (counted(beats, name) for name in ("first", "last", "between"))
    first.join(last).join(between).to("out")
    assert topology.plan()


def test_should_refuse_results_whose_branches_go_around_their_own_fork():
    topology = Topology("app")
    beats = a_stream(topology)
    other = topology.stream("other", schema="id STRING, n BIGINT", key="id")
    pairs = beats.join(other, within="5s")
    around = pairs.select("beat AS x").join(beats.select("beat AS y"), within="5s")
    around.join(pairs.select("beat AS z"), within="5s").to("out")
    with pytest.raises(InvalidTopology, match=r"reaches KSTREAM-JOIN-.* on paths that cross"):
        topology.plan()


def test_should_number_only_results_after_which_branches_fork_and_meet():
    topology = Topology("app")
    beats = a_stream(topology)
    other = topology.stream("other", schema="id STRING, n BIGINT", key="id")
    pairs = beats.join(other, within="5s")
    pairs.select("beat AS x").join(pairs.select("beat AS y"), within="5s").to("out")
    subtopology = the_sub_topology(topology)
    assert RecordPaths(subtopology).forks == {pairs.node}
    meeting = [node for node in subtopology.nodes if len(node.inputs) > 1 and node.node != pairs.node]
    assert [RecordPaths(subtopology).compared_by(node) for node in meeting] == [{pairs.node}]


def test_should_number_nothing_when_no_branches_meet():
    topology = Topology("app")
    counted(a_stream(topology), "n").to("out")
    assert not RecordPaths(the_sub_topology(topology)).forks


@pytest.mark.parametrize(
    ("build", "are_merged"),
    [
        (lambda beats, n, other: n.to_stream().join(other.to_table()).to("out"), True),
        (lambda beats, n, other: n.join(other.to_table()).to("out"), True),
        (lambda beats, n, other: (n.to("out"), beats.join(other, within="5s").to("out")), True),
        (lambda beats, n, other: (n.to("counts"), beats.join(other, within="5s").to("out")), False),
        (lambda beats, n, other: (beats.left_join(n).to("out"), other.to("elsewhere")), False),
        (lambda beats, n, other: (beats.left_join(n).to("x"), beats.join(other, within="5s").to("y")), False),
        (lambda beats, n, other: beats.left_join(n).join(other, within="5s").to("out"), True),
        (lambda beats, n, other: other.left_join(n).to("out"), True),
        (lambda beats, n, other: (n.to("x"), beats.to("x"), beats.join(other, within="5s").to("y")), False),
        (lambda beats, n, other: (n.to("x"), other.to("x"), beats.join(other, within="5s").to("y")), True),
    ],
    ids=[
        "stream of results in a join", "table in a join", "topic of two paths", "beside a join", "one source",
        "meets only its own source", "meets another source after its own", "table that another source looks up",
        "topic of two paths from one source", "topic that another source also writes",
    ],
)  # fmt: skip
def test_should_merge_results_with_other_sources_where_the_paths_of_both_meet(build, are_merged):
    topology = Topology("app")
    beats = a_stream(topology)
    results = counted(beats, "n")
    other = topology.stream("other", schema="id STRING, m BIGINT", key="id")
    build(beats, results, other)
    subtopology = next(found for found in topology.plan().subtopologies if found.aggregations)
    (aggregation,) = subtopology.aggregations
    assert RecordPaths(subtopology).are_merged(aggregation) == are_merged
