"""Counts in sliding windows."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology
from tidemark.topology.windows import sliding


def topology() -> Topology:
    """The topology of the case `sliding`."""
    topology = Topology("peers-sliding")
    (
        events(topology, "peers-sliding-in")
        .group_by_key()
        .windowed_by(sliding("20s").grace("5s"))
        .count(store="counts")
        .to("peers-sliding-out")
    )
    return topology
