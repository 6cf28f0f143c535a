"""Counts the pulses of each session of a patient. The case `sessions` measures this topology."""

from __future__ import annotations

from bench.topologies.pulse_counting import pulse_events

from tidemark.topology.builder import Topology
from tidemark.topology.windows import session


def topology() -> Topology:
    """Count the pulses of each patient until none comes for 30 s, accept beats up to 5 s late, and keep the sessions of 6 h."""
    topology = Topology("pulse-sessions", version="1")
    (
        pulse_events(topology)
        .group_by_key()
        .windowed_by(session("30s").grace("5s"))
        .count(name="pulses", store="pulse-counts", retention="6h")
        .to("pulse-counts")
    )
    return topology
