"""Pairs of two streams."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `stream-stream`."""
    topology = Topology("peers-stream-stream")
    left = events(topology, "peers-stream-stream-left").select("id", "v AS lv")
    right = events(topology, "peers-stream-stream-right").select("id", "v AS rv")
    left.join(right, within="60s", grace="10s").select("id", "lv", "rv").to("peers-stream-stream-out")
    return topology
