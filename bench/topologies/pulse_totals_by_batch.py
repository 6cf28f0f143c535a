"""The topology `pulse_totals` with a processor that takes a batch as one Arrow table, for the case `arrow_processor`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from bench.topologies.pulse_totals import totals_by

from tidemark.processors import ArrowProcessor, Context
from tidemark.topology.builder import Topology

_Integers = npt.NDArray[np.int64]


class TotalsOfBatches(ArrowProcessor):
    """Emits, for each pulse, how many the patient has had so far, and the sum of their intervals."""

    def init(self, context: Context) -> None:
        """Keep the store."""
        self._store = context.store("totals")

    def process(self, rows: pa.Table) -> pa.Table:
        """Add the pulses of a batch. A deletion has none."""
        pulses = rows.filter(pc.and_not(pc.is_valid(rows["__k"]), rows["__deleted"])).combine_chunks()
        encoded = pulses["__k"].combine_chunks().dictionary_encode()
        patient, names = encoded.indices.to_numpy(), encoded.dictionary
        known = self._store.get_many(names)
        before = {name: known[name].fill_null(0).to_numpy() for name in ("pulses", "total_ms")}
        # Raises for an interval that is null, which would otherwise become a number.
        interval = pulses["ibi_ms"].cast(pa.int64()).combine_chunks().to_numpy(zero_copy_only=True)
        count, total = _running(patient, interval, len(names))
        so_far = {"pulses": before["pulses"][patient] + count, "total_ms": before["total_ms"][patient] + total}
        # Of the rows of one patient the last one is kept.
        self._store.put_many(pulses["__k"], pa.table(so_far))
        emitted = {"__k": pulses["__k"], "__ts": pulses["__ts"], "patient_id": pulses["__k"]}
        return pa.table({**emitted, "beat_ms": pulses["beat_ms"], **so_far})


def _running(patient: _Integers, value: _Integers, patients: int) -> tuple[_Integers, _Integers]:
    """Return for each row the number of rows of its patient up to it, and the sum of their values."""
    order = np.argsort(patient, kind="stable")
    grouped = patient[order]
    first = np.searchsorted(grouped, np.arange(patients))
    sums = np.concatenate(([0], np.cumsum(value[order])))
    count, total = np.empty(len(patient), np.int64), np.empty(len(patient), np.int64)
    count[order] = np.arange(len(patient)) - first[grouped] + 1
    total[order] = sums[1:] - sums[first][grouped]
    return count, total


def topology() -> Topology:
    """Emit the running totals of each patient."""
    return totals_by("bench.topologies.pulse_totals_by_batch:TotalsOfBatches", batched=True)
