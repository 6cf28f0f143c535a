"""The running totals of each patient, compared with those that the event numbers give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.case import Case, Integers
from bench.events import ibi_ms
from bench.outputs import Verdict, digest, numbers, parsed

_TOTAL = pa.schema(
    [("patient_id", pa.string()), ("beat_ms", pa.int64()), ("pulses", pa.int64()), ("total_ms", pa.int64())]
)


def expected_totals(case: Case) -> Integers:
    """Return the sum of the patient's intervals so far for each event number. The patients must be in turn."""
    rounds = -(-case.events // case.keys)
    intervals_ms = ibi_ms(np.arange(rounds * case.keys)).reshape(rounds, case.keys)
    return np.cumsum(intervals_ms, axis=0).ravel()[: case.events]


class Totals:
    """Counts how often the totals after each event were written, and how often they were right."""

    def __init__(self, case: Case, start_ms: int) -> None:
        self._case = case
        self._start_ms = start_ms
        self._expected = expected_totals(case)
        self._right, self._wrong = np.zeros((2, case.events), dtype=np.int64)
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records in any order."""
        table = parsed(values, _TOTAL)
        patient = numbers(table["patient_id"].combine_chunks(), keys)
        beat, pulses, total = (table[name].fill_null(-1).to_numpy() for name in ("beat_ms", "pulses", "total_ms"))
        number = patient + (pulses - 1) * self._case.keys
        is_event = (patient >= 0) & (patient < self._case.keys) & (number >= 0) & (number < self._case.events)
        is_event &= beat == self._start_ms + self._case.offset_ms(number)
        self.records += len(values)
        self.unexpected += int(np.count_nonzero(~is_event))
        events = number[is_event]
        is_right = total[is_event] == self._expected[events]
        self._right += np.bincount(events[is_right], minlength=self._case.events)
        self._wrong += np.bincount(events[~is_right], minlength=self._case.events)

    def verdict(self) -> Verdict:
        """Compare with what must be there: the right totals of each event, once."""
        written = self._right + self._wrong
        return Verdict(
            records=self.records,
            results=int(np.count_nonzero(written)),
            missing=int(np.count_nonzero(written == 0)),
            wrong=int(np.count_nonzero((self._wrong > 0) | (self._right > 1))),
            unexpected=self.unexpected,
            digest=digest(np.stack((self._right, self._wrong))),
        )
