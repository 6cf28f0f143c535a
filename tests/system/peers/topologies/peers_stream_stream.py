"""Pairs of two streams."""

from __future__ import annotations

from topologies._sources import two_streams

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-stream`."""
    topology = Topology("peers-stream-stream")
    left, right = two_streams(topology)
    left.join(right, within="60s", grace="10s").select("id", "lv", "rv").to("peers-stream-stream-out")
    return topology
