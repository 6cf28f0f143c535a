"""Two streams of events and the pairs of their join, compared with those that the event numbers give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.case import APART_MS, Block, Case, Integers
from bench.events import breath_block, event_numbers, pulse_block
from bench.outputs import Verdict, digest, numbers, parsed

_PAIR = pa.schema([("patient_id", pa.string()), ("beat_ms", pa.int64()), ("breath_ms", pa.int64())])
_STEP = 7919


def beats_and_breaths(case: Case, start_ms: int, number: Integers) -> list[Block]:
    """Return the pulses and the breaths with these event numbers: the pulses have the even ones."""
    even, odd = number[number % 2 == 0], number[number % 2 == 1]
    return [
        pulse_block(case, _pulsing(case, even), start_ms + case.offset_ms(even), even),
        breath_block(case, _breathing(case, odd), start_ms + case.offset_ms(odd)),
    ]


def expected_pairs(case: Case) -> Integers:
    """Return patient, beat and breath of each pair, in their order."""
    number = np.concatenate(list(event_numbers(case)))
    even, odd = number[number % 2 == 0], number[number % 2 == 1]
    # Patient and time as one number. Those of two patients are further apart than the events of a pair may be.
    spread = case.span_ms + 2 * APART_MS
    beats = np.sort(_pulsing(case, even) * spread + case.offset_ms(even))
    breaths = np.sort(_breathing(case, odd) * spread + case.offset_ms(odd))
    first = np.searchsorted(breaths, beats - APART_MS, side="left")
    partners = np.searchsorted(breaths, beats + APART_MS, side="right") - first
    beat = np.repeat(beats, partners)
    nth = np.arange(len(beat)) - np.repeat(np.cumsum(partners) - partners, partners)
    breath = breaths[np.repeat(first, partners) + nth]
    return np.stack((beat // spread, beat % spread, breath % spread), axis=1)


def _pulsing(case: Case, even: Integers) -> Integers:
    """Return the patients of pulses: each in turn."""
    return even // 2 % case.keys


def _breathing(case: Case, odd: Integers) -> Integers:
    """Return the patients of breaths: each in turn, but in another order, so their times since the last pulse differ.

    `case.keys` must be no multiple of 7919.
    """
    return odd // 2 * _STEP % case.keys


class Pairs:
    """Collects pairs. Each must be written once."""

    def __init__(self, case: Case, start_ms: int) -> None:
        self._case = case
        self._start_ms = start_ms
        self._places = [np.empty(0, dtype=np.int64)]
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records in any order."""
        table = parsed(values, _PAIR)
        patient = numbers(table["patient_id"].combine_chunks(), keys)
        beat, breath = (table[name].fill_null(-1).to_numpy() - self._start_ms for name in ("beat_ms", "breath_ms"))
        is_legal = (patient >= 0) & (patient < self._case.keys) & (beat >= 0) & (beat < self._case.span_ms)
        is_legal &= np.abs(breath - beat) <= APART_MS
        self.records += len(values)
        self.unexpected += int(np.count_nonzero(~is_legal))
        rows = np.stack((patient, beat, breath), axis=1)[is_legal]
        self._places.append(self._place(rows))

    def _place(self, rows: Integers) -> Integers:
        """Return one number for each possible pair."""
        patient, beat, breath = rows.T
        place: Integers = (patient * self._case.span_ms + beat) * (2 * APART_MS + 1) + breath - beat + APART_MS
        return place

    def verdict(self) -> Verdict:
        """Compare the pairs with the expected ones."""
        expected = self._place(expected_pairs(self._case))
        found, times = np.unique(np.concatenate(self._places), return_counts=True)
        is_expected = np.isin(found, expected)
        return Verdict(
            records=self.records,
            results=len(found),
            missing=len(expected) - int(np.count_nonzero(is_expected)),
            wrong=int(np.count_nonzero(times[is_expected] > 1)),
            unexpected=self.unexpected + int(np.count_nonzero(~is_expected)),
            digest=digest(found),
        )
