"""The counts per patient and window in an output topic, compared with counts from the event numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.case import GRACE_MS, PARTITIONS, WINDOW_MS, Case, Integers
from bench.events import event_numbers, expected_counts, key_name, patient_digits
from bench.outputs import Verdict, digest, numbers, parsed
from tidemark.kafka.partitioner import partitions_of

COUNT = pa.schema(
    [
        ("patient_id", pa.string()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("pulses", pa.int64()),
    ]
)


class LastCounts:
    """Collects the last count per window (rows) and key (columns), 0 if there was none. `expected` has the same shape."""

    def __init__(self, case: Case, start_ms: int, expected: Integers) -> None:
        self._case = case
        self.expected = expected
        self._start_ms = start_ms
        self.counts = np.zeros((case.windows, case.keys), dtype=np.int64)
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records of one or more partitions, those of each partition in the order of their offsets."""
        table = parsed(values, COUNT)
        key = numbers(table["patient_id"].combine_chunks(), keys)
        self.records += len(values)
        start, end, pulses = (table[name].fill_null(-1).to_numpy() for name in ("window_start", "window_end", "pulses"))
        window, into_window_ms = np.divmod(start - self._start_ms, WINDOW_MS)
        legal = (into_window_ms == 0) & (end == start + WINDOW_MS)
        legal &= (window >= 0) & (window < self._case.windows) & (key >= 0) & (key < self._case.keys) & (pulses > 0)
        self.unexpected += int(len(values) - np.count_nonzero(legal))
        self._keep_last(window[legal] * self._case.keys + key[legal], pulses[legal])

    def _keep_last(self, place: Integers, pulses: Integers) -> None:
        """Keep the last of several values for one place. (Assigned directly, numpy would not define which one is kept.)"""
        places, from_end = np.unique(place[::-1], return_index=True)
        self.counts.ravel()[places] = pulses[::-1][from_end]

    def verdict(self) -> Verdict:
        """Compare the counts with the expected ones."""
        expected = self.expected
        return Verdict(
            records=self.records,
            results=int(np.count_nonzero(self.counts)),
            missing=int(np.count_nonzero((self.counts == 0) & (expected > 0))),
            wrong=int(np.count_nonzero((self.counts != expected) & (self.counts > 0))),
            unexpected=self.unexpected,
            digest=digest(self.counts),
        )


def last_counts(case: Case, start_ms: int) -> LastCounts:
    """Return an empty collection of counts that must become those of all events."""
    return LastCounts(case, start_ms, expected_counts(case))


class FinalCounts(LastCounts):
    """Collects counts of windows that are over. Each must be written once."""

    def _keep_last(self, place: Integers, pulses: Integers) -> None:
        places, times = np.unique(place, return_counts=True)
        self.unexpected += int(times.sum() - len(places) + np.count_nonzero(self.counts.ravel()[places]))
        super()._keep_last(place, pulses)


def final_counts(case: Case, start_ms: int) -> FinalCounts:
    """Return an empty collection of counts that must become those of the windows that are over."""
    return FinalCounts(case, start_ms, np.where(_is_over(case), expected_counts(case), 0))


def _is_over(case: Case) -> npt.NDArray[np.bool_]:
    """Return for each window and key whether the events of the key's partition reach the end of the grace period."""
    digits = patient_digits(case)
    partition = partitions_of([key_name(key, digits).encode() for key in range(case.keys)], PARTITIONS)
    stream_time_ms = np.zeros(PARTITIONS, dtype=np.int64)
    for number in event_numbers(case):
        np.maximum.at(stream_time_ms, partition[case.patient(case, number)], case.offset_ms(number))
    closes_ms = (np.arange(case.windows) + 1) * WINDOW_MS + GRACE_MS
    return closes_ms[:, None] <= stream_time_ms[partition][None, :]
