"""Patient monitoring: counts heartbeats, joins a high pulse with a high temperature to alerts, and handles check-outs."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling

HIGH_PULSE = 100
HIGH_TEMPERATURE = 38.0


def topology() -> Topology:
    """Count the pulses of each patient per 60 s, accept beats up to 5 s late, and keep windows for 6 h.

    `pulse-counts` receives every update, `pulse-finals` one final count per window. An alert is a final count above 100 within
    60 s of a temperature above 38 °C, for a patient who is checked in. A check-out is a record without a value on `patients`;
    it deletes the state that is kept of the patient.
    """
    topology = Topology("patient-monitoring", version="2")
    counts = (
        topology.stream(
            "pulse-events",
            schema="patient_id STRING, beat_ms BIGINT, ibi_ms INT, recording STRING",
            key="patient_id",
            timestamp="beat_ms",
        )
        .group_by_key()
        .windowed_by(tumbling("60s").grace("5s"))
        .count(name="pulses", store="pulse-counts", retention="6h")
        .to("pulse-counts")
    )
    finals = counts.suppress(until_window_closes(), store="pulse-finals").to("pulse-finals")
    high_pulse = finals.to_stream().filter(f"pulses > {HIGH_PULSE}")
    high_temperature = topology.stream(
        "temperature-events",
        schema="patient_id STRING, measured_ms BIGINT, celsius DOUBLE",
        key="patient_id",
        timestamp="measured_ms",
    ).filter(f"celsius > {HIGH_TEMPERATURE}")
    patients = topology.table("patients", schema="patient_id STRING, ward STRING", key="patient_id", store="patients")
    (
        high_pulse.join(high_temperature, within="60s", grace="10s", name="high-pulse-and-temperature")
        .join(patients)
        .to("alerts")
    )
    return topology
