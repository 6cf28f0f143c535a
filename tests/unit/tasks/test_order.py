"""The order of a batch's records, and the side of a join that a record reaches first, as in Kafka Streams."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.tasks.order import RecordOrder, placed
from tidemark.tasks.rows import rows_schema
from tidemark.topology.builder import Topology
from tidemark.topology.paths import LEFT_FIRST, RIGHT_FIRST, Met, RecordPaths
from tidemark.topology.plan import Pipeline, SubTopology

SCHEMA = "id STRING"


def a_stream(topology: Topology, topic: str):
    return topology.stream(topic, schema=SCHEMA, key="id")


def planned(topology: Topology) -> SubTopology:
    (subtopology,) = topology.plan().subtopologies
    return subtopology


def road(subtopology: SubTopology, topic: str, at: int = 0) -> Pipeline:
    """The road of a topic, or one of its roads."""
    return [b for b in subtopology.pipelines if subtopology.sources[b.source].topic == topic][at]


def rows(*given: tuple[int, int]) -> pa.Table:
    """(offset, timestamp) with the key `k<offset>`, as Spark hands them over: in any order."""
    offsets, times = zip(*given, strict=True)
    return pa.table([[f"k{o}" for o in offsets], times, offsets, [False] * len(given)], rows_schema(()))


def order_of(subtopology: SubTopology, *entered: tuple[Pipeline, pa.Table]) -> list[tuple[str, str]]:
    """Topic and key of every row, in the order of the places; checks that each road's rows come in that order."""
    numbered, _, _ = RecordOrder(RecordPaths(subtopology)).number(entered, [], [])
    found = []
    for (pipeline, _), table in zip(entered, numbered, strict=True):
        places = table.column("__seq").to_pylist()
        assert places == sorted(places)
        topic = subtopology.sources[pipeline.source].topic
        found += [(place, topic, key) for place, key in zip(places, table.column("__k").to_pylist(), strict=True)]
    return [(topic, key) for _, topic, key in sorted(found)]


def two_streams() -> SubTopology:
    topology = Topology("app")
    a_stream(topology, "left").join(a_stream(topology, "right").select("id"), within="1s").to("out")
    return planned(topology)


def test_should_order_the_records_of_one_topic_by_offset_whatever_their_timestamps():
    topology = Topology("app")
    a_stream(topology, "in").to_table()
    subtopology = planned(topology)
    found = order_of(subtopology, (road(subtopology, "in"), rows((7, 50), (5, 100), (6, 70))))
    assert [key for _, key in found] == ["k5", "k6", "k7"]


def test_should_merge_topics_by_the_newest_timestamp_of_each_up_to_a_record():
    subtopology = two_streams()
    left, right = road(subtopology, "left"), road(subtopology, "right")
    found = order_of(subtopology, (left, rows((0, 100), (1, 50), (2, 120))), (right, rows((0, 80), (1, 110), (2, 90))))
    assert [topic[0] + key[1] for topic, key in found] == ["r0", "l0", "l1", "r1", "r2", "l2"]


def test_should_take_the_first_topic_when_times_are_equal():
    subtopology = two_streams()
    left, right = road(subtopology, "left"), road(subtopology, "right")
    found = order_of(subtopology, (right, rows((0, 5), (1, 5))), (left, rows((3, 5), (4, 5))))
    assert [topic[0] + key[1] for topic, key in found] == ["l3", "l4", "r0", "r1"]


@pytest.mark.parametrize("made", [False, True])
def test_should_take_the_records_of_a_joins_table_first_when_times_are_equal(made):
    topology = Topology("app")
    stream = a_stream(topology, "stream")
    table = a_stream(topology, "table").to_table() if made else topology.table("table", schema=SCHEMA, key="id")
    stream.left_join(table).to("out")
    subtopology = planned(topology)
    found = order_of(
        subtopology, (road(subtopology, "stream"), rows((0, 5))), (road(subtopology, "table"), rows((9, 5)))
    )
    assert [topic for topic, _ in found] == ["table", "stream"]


def test_should_give_a_record_the_same_place_in_every_branch():
    topology = Topology("app")
    stream = a_stream(topology, "in")
    stream.filter("id > 'a'").join(stream.filter("id < 'z'").select("id"), within="1s").to("out")
    subtopology = planned(topology)
    one, other = road(subtopology, "in"), road(subtopology, "in", 1)
    numbered, _, _ = RecordOrder(RecordPaths(subtopology)).number(
        [(one, rows((0, 100), (2, 70))), (other, rows((1, 50), (2, 70)))], [], []
    )
    assert [table.column("__seq").to_pylist() for table in numbered] == [[1, 5], [3, 5]]


def own_count() -> SubTopology:
    topology = Topology("app")
    stream = a_stream(topology, "in")
    stream.left_join(stream.group_by_key().count(name="n")).to("out")
    return planned(topology)


@pytest.mark.parametrize(("last", "place"), [((0, 100), 0), ((1, 50), 1), ((2, 120), 2), ((3, 60), 3)])
def test_should_put_an_aggregations_result_at_the_last_record_of_its_key(last, place):
    subtopology = own_count()
    stream = next(b for b in subtopology.pipelines if b.enters)
    counted = next(b for b in subtopology.pipelines if b.aggregation)
    partials = pa.table({"__key": ["__key"], "__last_offset": [last[0]], "__max_ts": [last[1]]})
    numbered, places, _ = RecordOrder(RecordPaths(subtopology)).number(
        [(stream, rows((0, 100), (1, 50), (2, 120)))], [(counted, partials)], []
    )
    assert placed(rows(last), places[0]).column("__seq").to_pylist() == [2 * place + 1]
    assert numbered[0].column("__seq").to_pylist() == [1, 3, 5]


def test_should_place_an_aggregations_result_among_another_topics_records_by_the_newest_time_up_to_it():
    topology = Topology("app")
    counts = a_stream(topology, "in").group_by_key().count(name="n")
    counts.to_stream().join(topology.table("table", schema=SCHEMA, key="id")).to("out")
    subtopology = planned(topology)
    counted, table = road(subtopology, "in"), road(subtopology, "table")
    # The records of x have the offsets 0 (time 100) and 2; that of y has the offset 1 and the time 10.
    partials = pa.table({"__last_offset": [2, 1], "__max_ts": [100, 10], "__newest": [100, 100]})
    numbered, (places,), _ = RecordOrder(RecordPaths(subtopology)).number(
        [(table, rows((0, 50)))], [(counted, partials)], []
    )
    assert numbered[0].column("__seq").to_pylist() == [1]
    assert placed(rows((2, 100), (1, 100)), places).column("__k").to_pylist() == ["k1", "k2"]
    assert dict(zip(*(places.column(name).to_pylist() for name in ("offset", "place")), strict=True)) == {1: 3, 2: 5}


def test_should_count_a_record_that_was_filtered_out_from_the_next_result_on():
    topology = Topology("app")
    stream = a_stream(topology, "in")
    table = topology.table("table", schema=SCHEMA, key="id")
    stream.group_by_key().count(name="n").to_stream().join(table).to("counts")
    stream.filter("id > 'a'").left_join(table).to("out")
    subtopology = planned(topology)
    counted = next(b for b in subtopology.pipelines if b.aggregation)
    looked_up, entered = (b for b in subtopology.pipelines if b.enters)
    # The record with the offset 0 and the time 100 was filtered out; the result has the offset 2.
    partials = pa.table({"__last_offset": [2], "__max_ts": [20], "__newest": [100]})
    numbered, (places,), _ = RecordOrder(RecordPaths(subtopology)).number(
        [(entered, rows((1, 10), (3, 30))), (looked_up, rows((0, 50)))], [(counted, partials)], []
    )
    assert [table.column("__seq").to_pylist() for table in numbered] == [[1, 7], [3]]
    assert placed(rows((2, 20)), places).column("__seq").to_pylist() == [5]


def met(topology: Topology) -> Met:
    subtopology = planned(topology)
    (node,) = [node for node in subtopology.nodes if len(node.inputs) == 2]
    return RecordPaths(subtopology).met(node)


def test_should_see_its_own_update_in_a_table_that_comes_earlier_in_the_topology():
    topology = Topology("app")
    stream = a_stream(topology, "in")
    table = stream.select("id").to_table()
    stream.filter("id > 'a'").left_join(table).to("out")
    assert met(topology) == RIGHT_FIRST


def test_should_not_see_its_own_update_when_the_streams_branch_comes_first_in_the_topology():
    topology = Topology("app")
    stream = a_stream(topology, "in")
    filtered = stream.filter("id > 'a'")
    filtered.left_join(stream.select("id").to_table()).to("out")
    assert met(topology).left_sees_right is False


@pytest.mark.parametrize("left_first", [True, False])
def test_should_process_the_branches_of_two_streams_in_the_order_of_the_topology(left_first):
    topology = Topology("app")
    stream = a_stream(topology, "in")
    paths = [stream.filter("id > 'a'"), stream.filter("id < 'z'")]
    left, right = paths if left_first else reversed(paths)
    left.join(right, within="1s").to("out")
    assert met(topology) == (LEFT_FIRST if left_first else RIGHT_FIRST)


def test_should_update_a_table_before_its_derived_streams_and_before_a_join():
    topology = Topology("app")
    table = a_stream(topology, "in").to_table()
    table.join(table.to_stream().select("id").to_table()).to("out")
    assert met(topology) == Met(left_sees_right=True, right_sees_left=True, right_first=True)
