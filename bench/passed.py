"""The records that a program has passed through, compared byte by byte with those that it was given."""

from __future__ import annotations

import numpy as np

from bench.case import Case, Integers
from bench.events import beat_place, ibi_ms
from bench.outputs import Verdict, digest

LEAST_IBI_MS = 700


class Passed:
    """Counts how often each event was written, under its key and with the bytes of its value."""

    def __init__(self, case: Case, start_ms: int) -> None:
        self._case = case
        self._start_ms = start_ms
        self._beat_place = beat_place(case)
        self._written = np.zeros(case.events, dtype=np.int64)
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records in any order."""
        self.records += len(values)
        number = np.array([self._number(key, value) for key, value in zip(keys, values, strict=True)])
        is_event = (number >= 0) & (number < self._case.events)
        events = number[is_event]
        (given,) = self._case.program.records(self._case, self._start_ms, events)
        own_keys, own_values = ([each[place] for place in np.flatnonzero(is_event)] for each in (keys, values))
        pairs = zip(own_keys, own_values, given.keys, given.values, strict=True)
        is_same = np.array([key == given_key and value == given_value for key, value, given_key, given_value in pairs])
        passed = events[is_same] if events.size else events
        self.unexpected += len(values) - len(passed)
        self._written += np.bincount(passed, minlength=self._case.events)

    def _number(self, key: bytes | None, value: bytes | None) -> int:
        """Return the number of the event that a record claims to be, or -1. In turns, a key's events are `keys` apart."""
        try:
            patient = int((key or b"")[1:])
            since_ms = int((value or b"")[self._beat_place]) - self._start_ms
        except ValueError:
            return -1
        first_ms = patient * self._case.interval_ms // self._case.keys
        return patient + (since_ms - first_ms) // self._case.interval_ms * self._case.keys

    def verdict(self) -> Verdict:
        """Compare the events that were written with those that must be: each of them once."""
        number: Integers = np.arange(self._case.events)
        is_expected = ibi_ms(number) >= LEAST_IBI_MS
        return Verdict(
            records=self.records,
            results=int(np.count_nonzero(self._written)),
            missing=int(np.count_nonzero(is_expected & (self._written == 0))),
            wrong=int(np.count_nonzero(is_expected & (self._written > 1))),
            unexpected=self.unexpected + int(self._written[~is_expected].sum()),
            digest=digest(self._written),
        )
