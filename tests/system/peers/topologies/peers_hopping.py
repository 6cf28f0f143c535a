"""Counts in hopping windows."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology
from tidemark.topology.windows import hopping


def topology() -> Topology:
    """The topology of the case `hopping`."""
    topology = Topology("peers-hopping")
    (
        events(topology, "peers-hopping-in")
        .group_by_key()
        .windowed_by(hopping("60s", "20s").grace("5s"))
        .count(store="counts")
        .to("peers-hopping-out")
    )
    return topology
