"""The left one of two tables, with the rows of the right one."""

from __future__ import annotations

from topologies._sources import two_tables

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `table-table-left`."""
    topology = Topology("peers-table-table-left")
    left, right = two_tables(topology)
    left.left_join(right).to("peers-table-table-left-out")
    return topology
