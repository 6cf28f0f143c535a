"""The counting part of patient monitoring alone. The benchmark measures this topology."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.plan import Guarantee
from tidemark.topology.stream import Stream
from tidemark.topology.windows import tumbling


def pulse_events(topology: Topology) -> Stream:
    """Return the stream of beats that most cases read."""
    return topology.stream(
        "pulse-events",
        schema="patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING",
        key="patient_id",
        timestamp="beat_ms",
    )


def topology() -> Topology:
    """Count the pulses of each patient per 60 s, accept beats up to 5 s late, and keep the windows of 6 h."""
    return counting(Guarantee.EXACTLY_ONCE)


def counting(guarantee: Guarantee) -> Topology:
    """Return the topology with this guarantee."""
    topology = Topology("pulse-counting", version="1", guarantee=guarantee.value)
    (
        pulse_events(topology)
        .group_by_key()
        .windowed_by(tumbling("60s").grace("5s"))
        .count(name="pulses", store="pulse-counts", retention="6h")
        .to("pulse-counts")
    )
    return topology
