"""`docs/stores.md`: its example is short, and carries a topology on the test driver."""

from __future__ import annotations

import pytest
from tests.support.stores_page import SOURCE, SOURCES

from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import tumbling

CUSTOM = "tests.support.stores_page:SqliteStore"
T0 = 1_700_000_040_000


def test_should_have_an_example_shorter_than_40_lines():
    assert len(SOURCE.splitlines()) < 40


@pytest.mark.parametrize("source", [source for source in SOURCES if "def topology" in source])
def test_should_plan_every_topology_on_the_page(source):
    names = {}
    exec(source, names)
    assert names["topology"]().plan().stores


@pytest.mark.spark
def test_should_keep_aggregates_tables_and_expiry_in_a_custom_store(topology_driver):
    topology = Topology("app")
    beats = topology.stream("beats", schema="id STRING, at_ms BIGINT", key="id", timestamp="at_ms")
    counts = beats.group_by_key().windowed_by(tumbling("1m"))
    counts.count(name="n", store=Materialized("counts", custom=CUSTOM)).to("counts")
    topology.table("wards", schema="ward STRING", store=Materialized("wards", custom=CUSTOM, ttl="1h"))
    driver = topology_driver(topology, start_ms=T0)
    assert type(driver._stores[next(iter(driver._stores))]["counts"]).__name__ == "SqliteStore"
    for at in (0, 1, 60_000):
        driver.pipe("beats", {"id": "p1", "at_ms": T0 + at}, key="p1")
    driver.pipe("wards", {"ward": "3"}, key="p1")
    driver.pipe("wards", {"ward": "4"}, key="p2")
    assert driver.store("counts") == {("p1", T0): {"n": 2}, ("p1", T0 + 60_000): {"n": 1}}
    driver.pipe("wards", None, key="p2")
    assert driver.store("wards") == {"p1": {"ward": "3"}}
    driver.advance_stream_time(T0 + 3 * 3_600_000)
    assert driver.store("wards") == {}
