"""Plans with routers, and the task to which a stored key belongs."""

from __future__ import annotations

from tests.support.routing import SCHEMA

from tidemark.operations.change.key_owner import owner_of
from tidemark.registry.description import describe_state
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling


def of_every_kind():
    """Stores with every layout of keys that there is."""
    topology = Topology("app")
    left = topology.stream("left", schema=SCHEMA, key="id", timestamp="v")
    right = topology.stream("right", schema="id STRING, w BIGINT", key="id", timestamp="w")
    grouped = left.group_by_key()
    grouped.count(store="all")
    counts = grouped.windowed_by(tumbling("10s").grace("5s")).count(store="windows", retention="1h")
    counts.suppress(until_window_closes(), store="open").to("out")
    grouped.windowed_by(session("5s").grace("5s")).count(store="sessions", retention="1h")
    left.outer_join(right, within="5s", grace="5s", name="joined").to("pairs")
    right.to_table(Materialized("last", ttl="1h"))
    return topology


def test_should_find_the_record_key_in_the_keys_of_every_store(topology_driver):
    topology, keys = of_every_kind(), ["a", "a-longer-key", "\u00e9"]
    driver = topology_driver(topology)
    for at, key in enumerate(keys):
        driver.pipe("left", {"id": key, "page": "p", "v": 10_000 + at}, key=key)
        driver.pipe("right", {"id": f"{key}!", "w": 10_000 + at}, key=f"{key}!")
        driver.pipe("right", {"id": key, "w": 11_000 + at}, key=key)
    driver.commit()
    described = describe_state(topology.plan(), {})
    expected = {name: set(keys) for name in described.stores}
    both = {*keys, *(f"{key}!" for key in keys)}
    expected |= {"joined-other-store": both, "last": both, "last-order": both}
    expected["joined-outer-store"] = {f"{key}!" for key in keys}
    found = {}
    for name, state in described.stores.items():
        stored = [
            key
            for stores in driver._stores.values()
            for segment in stores[name].segments()
            for key, _ in stores[name].items(segment)
        ]
        found[name] = {key.decode() for key in owner_of(state)(stored)}
    assert found == expected
