"""Every record copied and counted, at_least_once."""

from __future__ import annotations

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The same topology as its sister's, but for the guarantee."""
    topology = Topology("crash-copies-at-least-once", guarantee="at_least_once")
    records = topology.stream("crash_copies_at_least_once-in", schema="id STRING, n BIGINT", key="id")
    records.filter("true").to("crash_copies_at_least_once-out")
    records.group_by_key().count(store="counts").to("crash_copies_at_least_once-counts")
    return topology
