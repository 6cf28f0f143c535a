"""A stream with the table row of then."""

from __future__ import annotations

from topologies._sources import events, rows

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-table`."""
    topology = Topology("peers-stream-table")
    stream = events(topology, "peers-stream-table-stream").select("id", "v AS lv")
    stream.join(rows(topology, "peers-stream-table-table")).select("id", "lv", "v AS rv").to("peers-stream-table-out")
    return topology
