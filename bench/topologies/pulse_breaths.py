"""Joins two streams: the pulses and the breaths of a patient. The case `join` measures this topology."""

from __future__ import annotations

from bench.topologies.pulse_counting import pulse_events

from tidemark.topology.builder import Topology


def topology() -> Topology:
    """Write each pair of a pulse and a breath of one patient that are at most 20 s apart, and accept them up to 60 s late."""
    topology = Topology("pulse-breaths", version="1")
    pulses = pulse_events(topology).select("patient_id", "beat_ms")
    breaths = topology.stream(
        "breath-events",
        schema="patient_id STRING, breath_ms BIGINT",
        key="patient_id",
        timestamp="breath_ms",
    )
    pulses.join(breaths, within="20s", grace="60s").select("patient_id", "beat_ms", "breath_ms").to(
        "pulse-breath-pairs"
    )
    return topology
