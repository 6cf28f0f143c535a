"""Passes large values through, without state. The case `large` measures this topology."""

from __future__ import annotations

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """Keep the records with intervals of 700 ms or more, as they are."""
    topology = Topology("large-values", version="1")
    (
        topology.stream(
            "pulse-events",
            schema="patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING, waveform STRING",
            key="patient_id",
            timestamp="beat_ms",
        )
        .filter("ibi_ms >= 700")
        .to("long-intervals")
    )
    return topology
