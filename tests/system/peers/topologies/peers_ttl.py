"""A store that forgets what was not written for long."""

from __future__ import annotations

from topologies._memory import answers

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `ttl`."""
    return answers("ttl", ttl="50m")
