"""The differences from Kafka Streams in `docs/semantics.md`, on the test driver."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemark.kafka.partitioner import partitions_of
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized, store
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
MINUTE = 60_000
T0 = 1_700_000_040_000  # a whole minute
PROCESSORS = "tests.support.used_processors"


def a_topology() -> tuple[Topology, object]:
    topology = Topology("app")
    beats = topology.stream("beats", schema="id STRING, at_ms BIGINT, ward STRING", key="id", timestamp="at_ms")
    return topology, beats


@pytest.fixture
def running(topology_driver):
    """Makes a driver that has `pipe_at(seconds, key, ward)`."""

    def make(topology, **options):
        driver = topology_driver(topology, start_ms=T0 + 30 * MINUTE, **options)
        driver.pipe_at = lambda seconds, key="p1", ward=None: driver.pipe(
            "beats", {"id": key, "at_ms": T0 + seconds * 1000, "ward": ward}, key=key
        )
        return driver

    return make


def values(records):
    return [record.value for record in records]


def counted(grace="0s"):
    topology, beats = a_topology()
    counts = beats.group_by_key().windowed_by(tumbling("60s").grace(grace)).count(name="n", store="counts")
    return topology, counts.to("counts")


def test_should_advance_stream_time_per_commit_and_judge_lateness_at_the_start_of_the_batch(running):
    driver = running(counted()[0])
    driver.pipe_at(120)
    driver.pipe_at(0)
    assert driver.store("counts") == {("p1", T0): {"n": 1}, ("p1", T0 + 2 * MINUTE): {"n": 1}}
    assert driver.late_records == 0
    driver.pipe_at(1)
    driver.commit()
    assert driver.late_records == 1
    assert driver.store("counts")["p1", T0] == {"n": 1}


def test_should_emit_one_update_per_touched_window_and_commit(running):
    driver = running(counted()[0])
    for seconds in (0, 1, 2, 61):
        driver.pipe_at(seconds)
    assert [(v["window_start"] - T0, v["n"]) for v in values(driver.read("counts"))] == [(0, 3), (MINUTE, 1)]
    driver.pipe_at(62)
    assert [v["n"] for v in values(driver.read("counts"))] == [2]


def test_should_order_the_records_of_a_batch_by_newest_timestamp_then_table_then_offset(running):
    topology, beats = a_topology()
    wards = topology.table("wards", schema="name STRING", store="wards")
    beats.left_join(wards).to("out")
    driver = running(topology)
    driver.pipe_at(2, ward="second")
    driver.pipe_at(1, ward="first")
    for at, name in ((1, "a"), (2, "b")):
        driver.pipe("wards", {"name": name}, key="p1", timestamp_ms=T0 + at * 1000)
    # Nothing of the beats' topic comes before its first record, which is as new as the second ward.
    assert [(v["ward"], v["name"]) for v in values(driver.read("out"))] == [("second", "b"), ("first", "b")]


@pytest.mark.parametrize("has_sketch", [False, True])
def test_should_place_an_aggregations_result_among_another_topics_records_by_the_newest_timestamp(running, has_sketch):
    topology, beats = a_topology()
    wards = topology.table("wards", schema="name STRING", store="wards")
    kinds = {"kinds": "distinct(ward)"} if has_sketch else {}
    counts = beats.group_by_key().aggregate(store="counts", n="count(*)", **kinds)
    counts.to_stream().join(wards).to("out")
    driver = running(topology)
    # The newest beat comes first; the last one of its key comes after that of the other.
    for at, key in ((100, "p2"), (10, "p1"), (20, "p2")):
        driver.pipe_at(at, key)
    driver.pipe("wards", {"name": "a"}, key="p1", timestamp_ms=T0 + 50_000)
    assert [(v["id"], v["n"], v["name"]) for v in values(driver.read("out"))] == [("p1", 1, "a")]


def test_should_keep_the_last_record_of_a_table_by_offset_even_when_it_is_older(running):
    topology, beats = a_topology()
    beats.to_table("last")
    driver = running(topology)
    driver.pipe_at(100, ward="first")
    driver.pipe_at(50, ward="second")
    assert driver.store("last")["p1"]["ward"] == "second"


def test_should_include_a_record_in_the_count_that_its_own_stream_joins(running):
    topology, beats = a_topology()
    beats.left_join(beats.group_by_key().count(name="n", store="counts")).to("out")
    driver = running(topology)
    found = []
    for seconds in (100, 50, 120):
        driver.pipe_at(seconds)
        found += [v["n"] for v in values(driver.read("out"))]
    assert found == [1, 2, 3]
    # In one batch the count comes once, with the key's newest record.
    driver.pipe_at(121)
    driver.pipe_at(122)
    assert [v["n"] for v in values(driver.read("out"))] == [3, 5]


def test_should_emit_a_merged_session_once_and_delete_its_parts(running):
    topology, beats = a_topology()
    beats.group_by_key().windowed_by(session("60s")).count(name="n", store="sessions").to("sessions")
    driver = running(topology)
    for seconds in (0, 100, 50):
        driver.pipe_at(seconds)
    assert [v["n"] for v in values(driver.read("sessions"))] == [3]
    driver.pipe_at(150)
    deleted, merged = driver.read("sessions")
    assert (deleted.value, merged.value["n"], merged.value["window_end"]) == (None, 4, T0 + 150_000)


def test_should_emit_early_when_the_buffer_is_full_and_the_final_result_only_if_it_changed(running):
    topology, counts = counted()
    until = until_window_closes(max_records=1, when_full="emit_early_when_full")
    counts.suppress(until, store="buffer").to("finals")
    driver = running(topology)
    for key in ("p1", "p2"):
        driver.pipe_at(0, key)
    assert [(v["id"], v["n"]) for v in values(driver.read("finals"))] == [("p1", 1)]
    driver.advance_stream_time(T0 + MINUTE)
    assert [(v["id"], v["n"]) for v in values(driver.read("finals"))] == [("p2", 1)]


def test_should_not_reopen_a_session_through_a_chain_of_late_records(running):
    topology, beats = a_topology()
    beats.group_by_key().windowed_by(session("30s").grace("5s")).count(name="n", store="sessions")
    driver = running(topology)
    driver.pipe_at(100)
    driver.commit()
    for seconds in (0, 25, 50, 70):
        driver.pipe_at(seconds)
    driver.commit()
    assert driver.store("sessions") == {("p1", T0 + 70_000, T0 + 100_000): {"n": 2}}
    assert driver.late_records == 3


def test_should_keep_a_session_in_a_downstream_table_when_its_start_moves(running):
    topology, beats = a_topology()
    sessions = beats.group_by_key().windowed_by(session("60s")).count(name="n", store="sessions")
    sessions.to_stream().to_table("newest")
    driver = running(topology)
    for seconds in (100, 60):
        driver.pipe_at(seconds)
        driver.commit()
    assert driver.store("newest")["p1"]["n"] == 2


def test_should_emit_the_final_result_of_a_session_that_ends_exactly_at_gap_and_grace(running):
    topology, beats = a_topology()
    sessions = beats.group_by_key().windowed_by(session("3s").grace("10s")).count(name="n", store="sessions")
    sessions.suppress(until_window_closes()).to("finals")
    driver = running(topology)
    for seconds in (140, 127):
        driver.pipe_at(seconds)
        driver.commit()
    assert [(v["window_end"] - T0, v["n"]) for v in values(driver.read("finals"))] == [(127_000, 1)]


def test_should_advance_the_time_of_a_sub_topology_after_what_it_is_given(running):
    """The final result of a window is in time for the larger window of the next sub-topology, as in production."""
    topology, beats = a_topology()
    counts = beats.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="counts")
    finals = counts.suppress(until_window_closes()).to_stream()
    finals.group_by("n", name="by-n").windowed_by(tumbling("5m")).count(name="m", store="again").to("out")
    driver = running(topology)
    driver.pipe_at(0)
    driver.advance_stream_time(T0 + 10 * MINUTE)
    assert [v["m"] for v in values(driver.read("out"))] == [1]
    assert driver.late_records == 0


@pytest.mark.parametrize(("seconds", "finals"), [(124, []), (125, [2])])
def test_should_close_a_suppressed_session_a_gap_and_a_grace_after_its_end(running, seconds, finals):
    topology, beats = a_topology()
    sessions = beats.group_by_key().windowed_by(session("60s").grace("5s")).count(name="n", store="sessions")
    sessions.suppress(until_window_closes()).to("finals")
    driver = running(topology)
    driver.pipe_at(0)
    driver.pipe_at(60)
    driver.commit()
    driver.advance_stream_time(T0 + seconds * 1000)
    assert [v["n"] for v in values(driver.read("finals"))] == finals


def test_should_drop_records_whose_new_key_is_null(running):
    topology, beats = a_topology()
    beats.group_by("ward", name="by-ward").count(name="n", store="wards")
    driver = running(topology, partitions=2)
    for seconds, ward in enumerate(("3", None, "3")):
        driver.pipe_at(seconds, ward=ward)
    assert driver.store("wards") == {"3": {"n": 2}}
    assert driver.read("app-dlq") == []


def test_should_pass_records_with_a_null_new_key_to_a_left_join(running):
    topology, beats = a_topology()
    wards = topology.table("wards", schema="name STRING", store="wards")
    beats.repartition("ward", "by-ward").left_join(wards).to("out")
    driver = running(topology)
    driver.pipe_at(0, ward=None)
    driver.pipe_at(1, ward="3")
    driver.commit()
    assert [(record.key, record.value["ward"]) for record in driver.read("out")] == [(None, None), ("3", "3")]


@pytest.mark.parametrize(("condition", "out"), [
    ("name LIKE 'a%'", [{"name": "a"}]), ("coalesce(name, 'a') LIKE 'a%'", [{"name": "a"}, None]),
])  # fmt: skip
def test_should_evaluate_a_filter_after_a_table_on_a_deletion_as_on_nulls(running, condition, out):
    topology = Topology("app")
    wards = topology.table("wards", schema="name STRING", store="wards")
    wards.to_stream().filter(condition).to("out")
    driver = running(topology)
    driver.pipe("wards", {"name": "a"}, key="w1")
    driver.pipe("wards", {"name": "b"}, key="w2")
    driver.commit()
    driver.pipe("wards", None, key="w1")
    assert values(driver.read("out")) == out


def test_should_let_expressions_after_an_aggregation_see_the_key_and_the_window_of_a_deletion(running):
    topology, beats = a_topology()
    sessions = beats.group_by_key().windowed_by(session("60s")).count(name="n", store="sessions").to_stream()
    one = sessions.filter("id = 'p1'").filter("id = 'p1'")
    one.to("one", windowed_key=True)
    one.select("id", "window_start", "window_end", "n AS m").filter(f"id = 'p1' AND window_end <= {T0}").to("early")
    sessions.filter("n > 0").to("counted")
    sessions.filter("n IS NULL").repartition("concat(id, '!')", "again").to("again")
    driver = running(topology)
    for seconds, key in ((0, "p1"), (0, "p2"), (30, "p1"), (30, "p2")):
        driver.pipe_at(seconds, key)
        driver.commit()
    assert [record.key for record in driver.read("one") if record.value is None] == [("p1", T0, T0)]
    assert [record.value and record.value["m"] for record in driver.read("early")] == [1, None]
    assert None not in values(driver.read("counted"))
    assert [(record.key, record.value) for record in driver.read("again")] == [("p1!", None), ("p2!", None)]


def test_should_join_the_windows_of_two_streams_by_keys_that_contain_the_window(running):
    """The module in `docs/topology.md`."""
    names: dict[str, Any] = {}
    modules = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "topology.md").read_text(), re.DOTALL)
    exec(next(module for module in modules if "per_hour" in module), names)
    driver = running(names["topology"]())
    hour, start = 60 * MINUTE, T0 // (60 * MINUTE) * 60 * MINUTE
    for topic, shop, at in (
        ("visits", "a", 0),
        ("visits", "a", 1),
        ("orders", "a", 2),
        ("orders", "b", 3),
        ("visits", "a", hour),
        ("orders", "b", hour - 1),
    ):
        driver.pipe(topic, {"shop": shop, "at_ms": start + at}, key=shop)
        driver.commit()
    hours = {record.key: record.value for record in driver.read("hours")}
    assert {
        key: (row["shop"], row["window_start"] - start, row["visits"], row["orders"]) for key, row in hours.items()
    } == {
        f"a|{start}": ("a", 0, 2, 1),
        f"a|{start + hour}": ("a", hour, 1, None),
        f"b|{start}": ("b", 0, None, 2),
    }


def test_should_merge_two_streams_through_a_topic_that_the_same_application_reads(running):
    topology = Topology("app")
    for topic in ("a", "b"):
        topology.stream(topic, schema="id STRING, x BIGINT", key="id").to("merged")
    merged = topology.stream("merged", schema="id STRING, x BIGINT", key="id")
    merged.group_by_key().sum("x", name="x", store="sums").to("out")
    driver = running(topology, partitions=2)
    for topic, key, x in (("a", "p1", 1), ("b", "p1", 2), ("b", "p2", 4)):
        driver.pipe(topic, {"id": key, "x": x}, key=key)
    assert driver.store("sums") == {"p1": {"x": 3}, "p2": {"x": 4}}


def test_should_compute_the_same_as_spark_downstream_of_a_stateful_node(running):
    topology, counts = counted()
    counts.to_stream().select("n div 2 AS half", "n / 0 AS none", "CAST(n AS STRING) || '!' AS text").to("out")
    driver = running(topology)
    for seconds in (0, 1, 2):
        driver.pipe_at(seconds)
    assert values(driver.read("out")) == [{"half": 1, "none": None, "text": "3!"}]


def test_should_emit_the_results_of_a_commit_in_the_order_of_their_last_records(running):
    driver = running(counted()[0])
    for seconds, key in ((61, "p2"), (59, "p2"), (59, "p1"), (0, "p3")):
        driver.pipe_at(seconds, key)
    found = [(v["id"], v["window_start"] - T0) for v in values(driver.read("counts"))]
    assert found == [("p2", MINUTE), ("p2", 0), ("p1", 0), ("p3", 0)]


def in_spark(topology, beats):
    # Kafka Streams passes a record to the filter that was written first, whatever is written below it.
    down, up = beats.filter("ward <> 'up' OR ward = 'both'"), beats.filter("ward = 'up' OR ward = 'both'")
    up.select("'up' AS state", "at_ms").to("out")
    down.select("'down' AS state", "at_ms").to("out")


def in_the_task_loop(topology, beats):
    in_spark(topology, beats.to_table().to_stream())


def in_both(topology, beats):
    beats.filter("ward <> 'up' OR ward = 'both'").select("'down' AS state", "at_ms").to("out")
    beats.to_table("last").to_stream().filter("ward = 'up' OR ward = 'both'").select("'up' AS state", "at_ms").to("out")


@pytest.mark.parametrize("build", [in_spark, in_the_task_loop, in_both])
def test_should_write_a_topic_of_several_paths_in_the_order_of_the_records_for_any_division_into_batches(
    running, build
):
    chance = Random(11)
    wards = [(chance.choice("ab"), chance.choice(("up", "down", "both"))) for _ in range(24)]
    cuts = sorted(chance.sample(range(1, len(wards)), 5))
    written = []
    for ends in (range(len(wards) + 1), [0, *cuts, len(wards)], [0, len(wards)]):
        driver = running(build_of(build))
        for start, end in pairwise(ends):
            for second in range(start, end):
                driver.pipe_at(second, *wards[second])
            driver.commit()
        records = driver.read("out")
        written.append({key: [r.value for r in records if r.key == key] for key in "ab"})
    states = {"up": ["up"], "down": ["down"], "both": ["down", "up"]}
    expected = {
        key: [
            {"state": state, "at_ms": T0 + second * 1000}
            for second, (of_key, ward) in enumerate(wards)
            if of_key == key
            for state in states[ward]
        ]
        for key in "ab"
    }
    assert written == [expected] * 3


def build_of(build):
    topology, beats = a_topology()
    build(topology, beats)
    return topology


def test_should_expire_keys_at_the_end_of_a_batch_without_emitting_a_deletion(running):
    topology, beats = a_topology()
    beats.to_table(Materialized("last", ttl="1m")).to("out")
    driver = running(topology)
    driver.pipe_at(0)
    assert len(driver.read("out")) == 1
    driver.advance_stream_time(T0 + MINUTE + 1)
    assert driver.store("last") == {}
    assert driver.read("out") == []


def test_should_run_the_punctuation_of_the_upstream_processor_first(running):
    topology, beats = a_topology()
    first = beats.process(f"{PROCESSORS}:Every20", emits="n BIGINT")
    first.process(f"{PROCESSORS}:Every15", emits="n BIGINT").to("out")
    driver = running(topology)
    driver.pipe("beats", {"id": "a", "at_ms": T0}, key="a")
    driver.commit()
    driver.read("out")
    driver.pipe("beats", {"id": "b", "at_ms": T0 + 20}, key="b")
    # Due are 15 and 20: Kafka Streams calls the downstream processor's 15 before the upstream one's 20.
    assert [record.key for record in driver.read("out")] == ["b", "every 20", "every 15"]


def test_should_schedule_wall_clock_punctuation_from_when_the_driver_was_created(running):
    topology, beats = a_topology()
    beats.process(f"{PROCESSORS}:EveryTenSeconds", emits="n BIGINT").to("out")
    driver = running(topology)
    driver.advance_wall_clock("9s")
    assert driver.read("out") == []
    driver.advance_wall_clock("1s")
    assert [record.value["n"] for record in driver.read("out")] == [T0 + 30 * MINUTE + 10_000]


def test_should_keep_every_live_window_in_a_compacted_topic_of_windowed_keys(running):
    topology, beats = a_topology()
    by_key = beats.group_by_key()
    by_key.windowed_by(tumbling("60s").grace("1m")).count(name="n", store="t").to("times", windowed_key=True)
    sessions = (
        by_key.windowed_by(session("30s").grace("1m")).count(name="n", store="s").to("sessions", windowed_key=True)
    )
    named = sessions.to_stream().filter("n IS NULL OR n > 0").select("window_start", "window_end", "n * 1 AS n")
    named.to("mapped", windowed_key=True)
    driver = running(topology)
    for seconds in (0, 40, 61, 20):
        driver.pipe_at(seconds)
        driver.commit()
    kept = {topic: {r.key: r.value for r in driver.read(topic)} for topic in ("times", "sessions", "mapped")}
    assert {key: row["n"] for key, row in kept["times"].items()} == {("p1", T0): 3, ("p1", T0 + MINUTE): 1}
    live = {key: row["n"] for key, row in kept["sessions"].items() if row is not None}
    assert live == {("p1", T0, T0 + 61_000): 4}
    gone = {key for key, row in kept["sessions"].items() if row is None}
    assert gone
    # A tombstone says in its key which session is gone, also after it was mapped.
    assert {key for key, row in kept["mapped"].items() if row is None} == gone
    assert {key: row["n"] for key, row in kept["mapped"].items() if row is not None} == live


def test_should_keep_what_a_processor_forwards_in_the_task_of_its_new_key(running):
    topology, beats = a_topology()
    renamed = beats.process(f"{PROCESSORS}:UnderTheWard", emits="id STRING")
    renamed.repartition(name="by-ward").to_table("last-of-ward").to("out")
    driver = running(topology, partitions=3)
    wards = [f"ward {n}" for n in range(9)]
    for ward in wards:
        driver.pipe_at(1, key="p1", ward=ward)
    assert {ward: row["id"] for ward, row in driver.store("last-of-ward").items()} == dict.fromkeys(wards, "p1")
    holding = {
        task.id.partition: [key.decode() for segment in store.segments() for key, _ in store.items(segment)]
        for task in driver._tasks.values()
        for name, store in task.stores.items()
        if name == "last-of-ward"
    }
    assert {partition: sorted(keys) for partition, keys in holding.items()} == {
        partition: sorted(w for w in wards if partitions_of([w.encode()], 3)[0] == partition) for partition in range(3)
    }
    driver.pipe("beats", None, key="p1")
    assert set(driver.store("last-of-ward")) == set(wards) - {"ward 3"}


def test_should_run_processors_that_forward_nothing_as_the_last_nodes(running):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    stream.process(f"{PROCESSORS}:PutsNothingForZero", stores=[store("s", "n BIGINT")])
    stream.process(f"{PROCESSORS}:RaisesWithoutText")
    driver = running(topology, partitions=2)
    for key, x in (("a", 1), ("b", 2), ("a", 0)):
        driver.pipe("in", {"id": key, "x": x}, key=key)
    assert driver.store("s") == {"b": {"n": 2}}
    assert sorted(record.key for record in driver.read("app-dlq")) == ["a", "a", "b"]


def test_should_have_every_test_that_the_page_names():
    page = (ROOT / "docs" / "semantics.md").read_text()
    named = set(re.findall(r"`(test_should_\w+)`", page))
    written = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(named) > 10
    assert named - written == set()
