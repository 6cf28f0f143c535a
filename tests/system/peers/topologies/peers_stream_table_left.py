"""A stream with a table whose rows are deleted."""

from __future__ import annotations

from topologies._sources import stream_and_table

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-table-left`."""
    topology = Topology("peers-stream-table-left")
    stream, table = stream_and_table(topology)
    stream.left_join(table).select("id", "lv", "v AS rv").to("peers-stream-table-left-out")
    return topology
