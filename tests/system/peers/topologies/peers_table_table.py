"""Two tables."""

from __future__ import annotations

from topologies._sources import two_tables

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `table-table`."""
    topology = Topology("peers-table-table")
    left, right = two_tables(topology)
    left.join(right).to("peers-table-table-out")
    return topology
