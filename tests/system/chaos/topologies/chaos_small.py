"""The small stream that Airflow keeps running in chaos: elements as they come, and how many there were of each key."""

from __future__ import annotations

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """One task per partition; nothing is ever late."""
    topology = Topology("chaos-small")
    elements = topology.stream("chaos-small-in", schema="id STRING, n BIGINT", key="id")
    elements.filter("n >= 0").to("chaos-small-out")
    elements.group_by_key().count(store="small-counts").to("chaos-small-counts")
    return topology
