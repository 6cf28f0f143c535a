"""A stream with a table whose rows are deleted."""

from __future__ import annotations

from topologies._sources import events, rows

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `tombstone`."""
    topology = Topology("peers-tombstone")
    stream = events(topology, "peers-tombstone-stream").select("id", "v AS lv")
    stream.left_join(rows(topology, "peers-tombstone-table")).select("id", "lv", "v AS rv").to("peers-tombstone-out")
    return topology
