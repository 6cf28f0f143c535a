"""Every kind of stateful node at once, for crash tests: suppress, sessions, a join, a processor with TTL and LRU, a re-key."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.stores import store
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling


def topology() -> Topology:
    """Two sub-topologies; nothing acts by wall clock, so that what is committed can be computed again."""
    topology = Topology("crash-nodes")
    events = topology.stream(
        "nodes-events", schema="id STRING, ts BIGINT, v BIGINT, kind STRING", key="id", timestamp="ts"
    )
    others = topology.stream("nodes-others", schema="id STRING, ts BIGINT, w BIGINT", key="id", timestamp="ts")
    by_id = events.group_by_key()
    (
        by_id.windowed_by(tumbling("10s").grace("2s"))
        .count(store="counts", retention="1h")
        .suppress(until_window_closes(), store="finals")
        .to("nodes-finals")
    )
    by_id.windowed_by(session("3s").grace("2s")).sum("v", store="sessions", retention="1h").to("nodes-sessions")
    (
        events.select("id", "v")
        .left_join(others.select("id", "w"), within="2s", grace="1s", name="pairs")
        .to("nodes-pairs")
    )
    (
        events.process(
            "tests.system.crash.processor:Totals",
            emits="id STRING, total BIGINT, recent BIGINT",
            stores=[
                store("totals", "total BIGINT", ttl="20s"),
                store("recent", "total BIGINT", max_entries=10),
            ],
        ).to("nodes-totals")
    )
    events.group_by("kind", name="by-kind").sum("v", name="total", store="kinds").to("nodes-kinds")
    return topology
