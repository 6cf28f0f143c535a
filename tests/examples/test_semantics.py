"""What `docs/semantics.md` says of how Tidemark differs from Kafka Streams, on the test driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
MINUTE = 60_000
T0 = 1_700_000_040_000  # a whole minute


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


def test_should_move_stream_time_per_commit_and_judge_lateness_at_the_batchs_start(running):
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


def test_should_take_a_batchs_records_by_timestamp_then_source_then_offset(running):
    topology, beats = a_topology()
    wards = topology.table("wards", schema="name STRING", store="wards")
    beats.left_join(wards).to("out")
    driver = running(topology)
    driver.pipe_at(2, ward="second")
    driver.pipe_at(1, ward="first")
    for at, name in ((1, "a"), (2, "b")):
        driver.pipe("wards", {"name": name}, key="p1", timestamp_ms=T0 + at * 1000)
    # The beats' topic was written first, so at one time they come before the table's updates.
    assert [(v["ward"], v["name"]) for v in values(driver.read("out"))] == [("first", None), ("second", "a")]


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


def test_should_emit_early_what_a_full_buffer_pushes_out_and_the_final_only_if_it_changed(running):
    topology, counts = counted()
    until = until_window_closes(max_records=1, when_full="emit_early_when_full")
    counts.suppress(until, store="buffer").to("finals")
    driver = running(topology)
    for key in ("p1", "p2"):
        driver.pipe_at(0, key)
    assert [(v["id"], v["n"]) for v in values(driver.read("finals"))] == [("p1", 1)]
    driver.advance_stream_time(T0 + MINUTE)
    assert [(v["id"], v["n"]) for v in values(driver.read("finals"))] == [("p2", 1)]


@pytest.mark.parametrize(("seconds", "finals"), [(124, []), (125, [2])])
def test_should_close_a_suppressed_session_a_gap_and_a_grace_behind_its_end(running, seconds, finals):
    topology, beats = a_topology()
    sessions = beats.group_by_key().windowed_by(session("60s").grace("5s")).count(name="n", store="sessions")
    sessions.suppress(until_window_closes()).to("finals")
    driver = running(topology)
    driver.pipe_at(0)
    driver.pipe_at(60)
    driver.commit()
    driver.advance_stream_time(T0 + seconds * 1000)
    assert [v["n"] for v in values(driver.read("finals"))] == finals


def test_should_leave_records_out_whose_new_key_is_null(running):
    topology, beats = a_topology()
    beats.group_by("ward", name="by-ward").count(name="n", store="wards")
    driver = running(topology, partitions=2)
    for seconds, ward in enumerate(("3", None, "3")):
        driver.pipe_at(seconds, ward=ward)
    assert driver.store("wards") == {"3": {"n": 2}}
    assert driver.read("app-dlq") == []


def test_should_let_a_deletion_pass_a_filter_behind_a_table(running):
    topology = Topology("app")
    wards = topology.table("wards", schema="name STRING", store="wards")
    wards.to_stream().filter("name LIKE 'a%'").to("out")
    driver = running(topology)
    driver.pipe("wards", {"name": "a"}, key="w1")
    driver.pipe("wards", {"name": "b"}, key="w2")
    driver.commit()
    driver.pipe("wards", None, key="w1")
    assert values(driver.read("out")) == [{"name": "a"}, None]


def test_should_compute_behind_a_stateful_node_what_spark_computes(running):
    topology, counts = counted()
    counts.to_stream().select("n div 2 AS half", "n / 0 AS none", "CAST(n AS STRING) || '!' AS text").to("out")
    driver = running(topology)
    for seconds in (0, 1, 2):
        driver.pipe_at(seconds)
    assert values(driver.read("out")) == [{"half": 1, "none": None, "text": "3!"}]


def test_should_emit_a_commits_results_by_newest_timestamp_then_key_then_window(running):
    driver = running(counted()[0])
    for seconds, key in ((61, "p2"), (59, "p2"), (59, "p1"), (0, "p3")):
        driver.pipe_at(seconds, key)
    found = [(v["id"], v["window_start"] - T0) for v in values(driver.read("counts"))]
    assert found == [("p3", 0), ("p1", 0), ("p2", 0), ("p2", MINUTE)]


def test_should_expire_keys_at_the_end_of_a_batch_without_emitting_it(running):
    topology, beats = a_topology()
    beats.to_table(Materialized("last", ttl="1m")).to("out")
    driver = running(topology)
    driver.pipe_at(0)
    assert len(driver.read("out")) == 1
    driver.advance_stream_time(T0 + MINUTE + 1)
    assert driver.store("last") == {}
    assert driver.read("out") == []


def test_every_test_that_the_page_names_should_exist():
    page = (ROOT / "docs" / "semantics.md").read_text()
    named = set(re.findall(r"`(test_should_\w+)`", page))
    written = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(named) > 10
    assert named - written == set()
