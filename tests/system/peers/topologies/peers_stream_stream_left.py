"""Pairs of two streams, and what has no partner."""

from __future__ import annotations

from topologies._sources import two_streams

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-stream-left`."""
    topology = Topology("peers-stream-stream-left")
    left, right = two_streams(topology)
    left.left_join(right, within="60s", grace="10s").select("id", "lv", "rv").to("peers-stream-stream-left-out")
    return topology
