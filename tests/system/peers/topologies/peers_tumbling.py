"""Counts in tumbling windows."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    """The topology of the case `tumbling`."""
    topology = Topology("peers-tumbling")
    (
        events(topology, "peers-tumbling-in")
        .group_by_key()
        .windowed_by(tumbling("60s").grace("5s"))
        .count(store="counts")
        .to("peers-tumbling-out")
    )
    return topology
