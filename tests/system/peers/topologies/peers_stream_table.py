"""A stream with the table row of then."""

from __future__ import annotations

from topologies._sources import stream_and_table

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-table`."""
    topology = Topology("peers-stream-table")
    stream, table = stream_and_table(topology)
    stream.join(table).select("id", "lv", "v AS rv").to("peers-stream-table-out")
    return topology
