"""Generates the input column by column: every field has a fixed width, so a block of records is one matrix of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.case import WINDOW_MS, Block, Case, Integers

_PATIENT_DIGITS = 5
_BEAT_DIGITS = 13
_IBI_DIGITS = 3
_TEMPLATE = b'{"patient_id":"p%s","beat_ms":%s,"ibi_ms":%s,"recording":"data%s"}' % (
    b"#" * _PATIENT_DIGITS,
    b"#" * _BEAT_DIGITS,
    b"#" * _IBI_DIGITS,
    b"#",
)
_RECORDINGS = 3


def base_ms(now_ms: int, case: Case) -> int:
    """Return the start of the first window in epoch milliseconds.

    It is recent, because brokers delete records by the age of their timestamp, but all events lie in the past.
    """
    return (now_ms - case.span_ms - 10 * WINDOW_MS) // WINDOW_MS * WINDOW_MS


def blocks(case: Case, start_ms: int, begin: int = 0, size: int = 100_000) -> Iterator[Block]:
    """Yield the records of `case` from number `begin` on. The same `start_ms` gives the same bytes."""
    for first in range(begin, case.events, size):
        yield case.program.block(case, start_ms, np.arange(first, min(first + size, case.events), dtype=np.int64))


def expected_counts(case: Case) -> Integers:
    """Return the events per window (rows) and key (columns), computed from the event numbers without a stream processor."""
    counts = np.zeros(case.windows * case.keys, dtype=np.int64)
    for first in range(0, case.events, 1_000_000):
        number = np.arange(first, min(first + 1_000_000, case.events), dtype=np.int64)
        window = case.offset_ms(number) // WINDOW_MS
        counts += np.bincount(window * case.keys + case.patient(case, number), minlength=counts.size)
    return counts.reshape(case.windows, case.keys)


def pulses(case: Case, start_ms: int, number: Integers) -> Block:
    """Return the pulses with these event numbers."""
    patient = case.patient(case, number)
    columns = (
        (patient, _PATIENT_DIGITS),
        (start_ms + case.offset_ms(number), _BEAT_DIGITS),
        (600 + number * 7919 % 400, _IBI_DIGITS),
        (1 + patient % _RECORDINGS, 1),
    )
    values = np.tile(np.frombuffer(_TEMPLATE, dtype=np.uint8), (number.size, 1))
    holes = np.flatnonzero(np.frombuffer(_TEMPLATE, dtype=np.uint8) == ord("#"))
    digits = np.concatenate([_digits(column, width) for column, width in columns], axis=1)
    values[:, holes] = digits
    keys = np.empty((number.size, 1 + _PATIENT_DIGITS), dtype=np.uint8)
    keys[:, 0] = ord("p")
    keys[:, 1:] = digits[:, :_PATIENT_DIGITS]
    return Block(_rows(keys), _rows(values))


def _digits(column: Integers, width: int) -> npt.NDArray[np.uint8]:
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (column[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _rows(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return one `bytes` per row. Rows end in a printable character, so numpy's stripping of zero bytes changes nothing."""
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"S{matrix.shape[1]}").ravel().tolist()
    return rows
