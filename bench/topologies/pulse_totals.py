"""A processor in Python that is called for each record. The case `processor` measures this topology."""

from __future__ import annotations

from bench.topologies.pulse_counting import pulse_events

from tidemark.processors import Context, Processor, Record
from tidemark.topology.builder import Topology
from tidemark.topology.stores import store


class Totals(Processor):
    """Emits, for each pulse, how many the patient has had so far, and the sum of their intervals."""

    def init(self, context: Context) -> None:
        """Keep the store."""
        self._context = context
        self._store = context.store("totals")

    def process(self, record: Record) -> None:
        """Add one pulse. A deletion has none."""
        if record.key is None or record.row is None:
            return
        known = self._store.get(record.key) or {"pulses": 0, "total_ms": 0}
        row = {"pulses": known["pulses"] + 1, "total_ms": known["total_ms"] + record.row["ibi_ms"]}
        self._store.put(record.key, row)
        self._context.forward(record.key, {"patient_id": record.key, "beat_ms": record.row["beat_ms"], **row})


def topology() -> Topology:
    """Emit the running totals of each patient."""
    return totals_by("bench.topologies.pulse_totals:Totals")


def totals_by(processor: str, *, batched: bool = False) -> Topology:
    """Return the topology with this processor, which keeps the totals in the store `totals`."""
    topology = Topology("pulse-totals", version="1")
    (
        pulse_events(topology)
        .process(
            processor,
            emits="patient_id STRING, beat_ms BIGINT, pulses BIGINT, total_ms BIGINT",
            stores=[store("totals", "pulses BIGINT, total_ms BIGINT")],
            batched=batched,
        )
        .to("pulse-totals")
    )
    return topology
