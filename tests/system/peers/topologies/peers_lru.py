"""A store that keeps the keys used last."""

from __future__ import annotations

from topologies._memory import answers

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `lru`."""
    return answers("lru", max_entries=60)
