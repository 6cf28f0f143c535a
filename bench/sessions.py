"""Patients that come and go, and the sessions of their pulses, compared with those that the event numbers give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.case import GAP_MS, Case, Integers
from bench.counts import COUNT
from bench.events import event_numbers
from bench.outputs import Verdict, digest, numbers, parsed

_SHIFT_MS = 60_000


def shifts(case: Case, number: Integers) -> Integers:
    """Give one event in turn to each half of the patients that is there: each stays for 60 s, and is away for 60 s.

    They do not change all at once: patient k and its counterpart change 120 s * k / (keys / 2) before the first does.
    """
    places = case.keys // 2
    place = number % places
    ahead_ms = place * 2 * _SHIFT_MS // places
    return place + (case.offset_ms(number) + ahead_ms) // _SHIFT_MS % 2 * places


def expected_sessions(case: Case) -> Integers:
    """Return patient, first event, last event and number of events of each session, in the order of patient and time."""
    patient = np.concatenate([case.patient(case, number) for number in event_numbers(case)])
    by_patient = np.argsort(patient, kind="stable")
    patient, offset_ms = patient[by_patient], case.offset_ms(by_patient)
    begins = np.flatnonzero((np.diff(patient, prepend=-1) != 0) | (np.diff(offset_ms, prepend=0) > GAP_MS))
    ends = np.append(begins[1:], len(patient))
    return np.stack((patient[begins], offset_ms[begins], offset_ms[ends - 1], ends - begins), axis=1)


class Sessions:
    """Collects sessions. Each patient's events come in order, so a session grows at its end only, and its start names it."""

    def __init__(self, case: Case, start_ms: int) -> None:
        self._case = case
        self._start_ms = start_ms
        self._rows = [np.empty((0, 4), dtype=np.int64)]
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records of one or more partitions, those of each partition in the order of their offsets."""
        self.records += len(values)
        # A session that has grown may be deleted under its former end. Such a record does not name the session.
        kept = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        if not kept:
            return
        table = parsed([value for _, value in kept], COUNT)
        patient = numbers(table["patient_id"].combine_chunks(), [key for key, _ in kept])
        start, end = (self._offsets_ms(table[name]) for name in ("window_start", "window_end"))
        rows = np.stack((patient, start, end, table["pulses"].fill_null(-1).to_numpy()), axis=1)
        is_legal = (patient >= 0) & (patient < self._case.keys) & (start >= 0) & (start < self._case.span_ms)
        self.unexpected += int(np.count_nonzero(~is_legal))
        self._rows.append(rows[is_legal])

    def _offsets_ms(self, times: pa.ChunkedArray) -> Integers:
        offsets_ms: Integers = times.fill_null(-1).to_numpy() - self._start_ms
        return offsets_ms

    def verdict(self) -> Verdict:
        """Compare the last record of each session with the expected sessions."""
        rows, expected = np.concatenate(self._rows)[::-1], expected_sessions(self._case)
        places, last = np.unique(self._places(rows), return_index=True)
        found = rows[last]
        common, of_found, of_expected = np.intersect1d(
            places, self._places(expected), assume_unique=True, return_indices=True
        )
        return Verdict(
            records=self.records,
            results=len(found),
            missing=len(expected) - len(common),
            wrong=int(np.count_nonzero((found[of_found] != expected[of_expected]).any(axis=1))),
            unexpected=self.unexpected + len(found) - len(common),
            digest=digest(found),
        )

    def _places(self, rows: Integers) -> Integers:
        """Return one number for each patient and start."""
        return rows[:, 0] * self._case.span_ms + rows[:, 1]
