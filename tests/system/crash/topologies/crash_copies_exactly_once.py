"""Every record copied and counted, exactly_once."""

from __future__ import annotations

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The same topology as its sister's, but for the guarantee."""
    topology = Topology("crash-copies-exactly-once", guarantee="exactly_once")
    records = topology.stream("crash_copies_exactly_once-in", schema="id STRING, n BIGINT", key="id")
    records.filter("true").to("crash_copies_exactly_once-out")
    records.group_by_key().count(store="counts").to("crash_copies_exactly_once-counts")
    return topology
