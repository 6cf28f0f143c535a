"""The last value of each key."""

from __future__ import annotations

from topologies._sources import rows

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `table`."""
    topology = Topology("peers-table")
    rows(topology, "peers-table-in").to_stream().select("id", "v").to("peers-table-out")
    return topology
