"""One final count per window."""

from __future__ import annotations

from topologies._sources import events

from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    """The topology of the case `suppress`."""
    topology = Topology("peers-suppress")
    (
        events(topology, "peers-suppress-in")
        .group_by_key()
        .windowed_by(tumbling("60s").grace("5s"))
        .count(store="counts")
        .suppress(until_window_closes())
        .to("peers-suppress-out")
    )
    return topology
