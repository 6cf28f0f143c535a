"""Two tables."""

from __future__ import annotations

from topologies._sources import rows

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `table-table`."""
    topology = Topology("peers-table-table")
    left = rows(topology, "peers-table-table-left").to_stream().select("id", "v AS lv").to_table()
    right = rows(topology, "peers-table-table-right").to_stream().select("id", "v AS rv").to_table()
    left.join(right).to("peers-table-table-out")
    return topology
