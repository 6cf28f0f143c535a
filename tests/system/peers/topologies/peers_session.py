"""Counts in sessions."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology
from tidemark.topology.windows import session


def topology() -> Topology:
    """The topology of the case `session`."""
    topology = Topology("peers-session")
    (
        events(topology, "peers-session-in")
        .group_by_key()
        .windowed_by(session("30s").grace("5s"))
        .count(store="counts")
        .to("peers-session-out")
    )
    return topology
