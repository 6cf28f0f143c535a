"""A Topology that is made when the module is imported."""

from __future__ import annotations

from tidemark.topology.builder import Topology

_MADE = Topology("ready-made")
_MADE.stream("clicks", schema="page STRING").to("out")


def topology() -> Topology:
    return _MADE
