"""Everything at once, for chaos: running statistics, a queue, windows, sessions, joins, a table, a processor, a re-key.

Nothing here is ever late and nothing acts by wall clock, so that the result follows from the records alone, however they fall
into batches.
"""

from __future__ import annotations

import os

from tidemark.topology.builder import Topology
from tidemark.topology.stores import store
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling


def topology() -> Topology:
    """`chaos-numbers` carries nearly all of the load; the guarantee is that of the run."""
    topology = Topology("chaos-mix", guarantee=os.environ.get("TEST_CHAOS_GUARANTEE", "exactly_once"))
    (
        topology.stream("chaos-numbers", schema="id STRING, n BIGINT", key="id")
        .group_by_key()
        .aggregate(least="min(n)", greatest="max(n)", total="sum(n)", times="count(*)", store="stats")
        .to("chaos-stats")
    )
    topology.stream("chaos-queue", schema="id STRING, n BIGINT", key="id").filter("n >= 0").to("chaos-dequeued")

    events = topology.stream(
        "chaos-events", schema="id STRING, ts BIGINT, v BIGINT, kind STRING", key="id", timestamp="ts"
    )
    others = topology.stream("chaos-others", schema="id STRING, ts BIGINT, w BIGINT", key="id", timestamp="ts")
    people = topology.table("chaos-people", schema="id STRING, name STRING", key="id", store="people")
    by_id = events.group_by_key()
    (
        by_id.windowed_by(tumbling("10s").grace("1h"))
        .count(store="counts", retention="1d")
        .suppress(until_window_closes(), store="finals")
        .to("chaos-finals")
    )
    by_id.windowed_by(session("3s").grace("1h")).sum("v", store="sessions", retention="1d").to("chaos-sessions")
    (events.select("id", "v").join(others.select("id", "w"), within="2s", grace="1h", name="pairs").to("chaos-pairs"))
    events.select("id", "v").join(people).to("chaos-named")
    (
        events.process(
            "tests.system.chaos.processor:Totals",
            emits="id STRING, total BIGINT",
            stores=[store("totals", "total BIGINT")],
        ).to("chaos-totals")
    )
    events.group_by("kind", name="by-kind").sum("v", name="total", store="kinds").to("chaos-kinds")
    return topology
