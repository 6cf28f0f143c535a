"""Two tables, with the rows that only one of them has."""

from __future__ import annotations

from topologies._sources import two_tables

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `table-table-outer`."""
    topology = Topology("peers-table-table-outer")
    left, right = two_tables(topology)
    left.outer_join(right).to("peers-table-table-outer-out")
    return topology
