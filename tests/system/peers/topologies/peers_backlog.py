"""Counts in tumbling windows, while the same tasks read a small table whose records are all newer."""

from __future__ import annotations

from topologies._sources import events, rows

from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    """The topology of the case `backlog`."""
    topology = Topology("peers-backlog")
    stream = events(topology, "peers-backlog-stream")
    stream.group_by_key().windowed_by(tumbling("60s").grace("5s")).count(store="counts").to("peers-backlog-out")
    looked_up = stream.select("id", "v AS lv").left_join(rows(topology, "peers-backlog-table"))
    looked_up.select("id", "lv", "v AS rv").to("peers-backlog-joined")
    return topology
