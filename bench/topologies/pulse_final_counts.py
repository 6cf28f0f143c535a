"""The counts of `pulse_counting`, each written once, when its window is over. The case `suppress` measures this topology."""

from __future__ import annotations

from bench.topologies.pulse_counting import pulse_events

from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    """Count the pulses of each patient per 60 s, accept beats up to 5 s late, and write final counts only."""
    topology = Topology("pulse-final-counts", version="1")
    (
        pulse_events(topology)
        .group_by_key()
        .windowed_by(tumbling("60s").grace("5s"))
        .count(name="pulses", store="pulse-counts", retention="6h")
        .suppress(until_window_closes())
        .to("pulse-counts")
    )
    return topology
