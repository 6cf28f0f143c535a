"""Counts under another key, through a repartition topic."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """The topology of the case `rekey`."""
    topology = Topology("peers-rekey")
    groups = events(topology, "peers-rekey-in").select("CONCAT('g', CAST(v % 499 AS STRING)) AS id")
    groups.group_by("id", name="by-group").count(store="counts").to("peers-rekey-out")
    return topology
