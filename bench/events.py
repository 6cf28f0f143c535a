"""Generates the input column by column: every field has a fixed width, so a block of records is one matrix of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.case import BREATH_TOPIC, INPUT_TOPIC, WINDOW_MS, Block, Case, Integers

_PATIENT_DIGITS = 5
"""Fewer are never used, so that cases with up to 100 000 patients have the same bytes."""
_BEAT_DIGITS = 13
_IBI_DIGITS = 3
_DIGIT, _LETTER = b"#", b"~"
_LARGE_BYTES = 1024
_LARGE_FRAME = b'{%s,"waveform":"%s"}'
_RECORDINGS = 3
# Letters from which values are cut at different places, so that neither side can gain by their being equal.
_TEXT = np.random.default_rng(1).integers(ord("a"), ord("z"), 1 << 16, dtype=np.uint8, endpoint=True)

_Bytes = npt.NDArray[np.uint8]
_Columns = tuple[tuple[Integers, int], ...]
"""Numbers, and how many digits they have."""


def _fields(patient_digits: int) -> bytes:
    return b'"patient_id":"p%s","beat_ms":%s,"ibi_ms":%s,"recording":"data%s"' % (
        _DIGIT * patient_digits,
        _DIGIT * _BEAT_DIGITS,
        _DIGIT * _IBI_DIGITS,
        _DIGIT,
    )


def _pulse(patient_digits: int) -> bytes:
    return b"{%s}" % _fields(patient_digits)


def _breath(patient_digits: int) -> bytes:
    return b'{"patient_id":"p%s","breath_ms":%s}' % (_DIGIT * patient_digits, _DIGIT * _BEAT_DIGITS)


def _large(patient_digits: int) -> bytes:
    fields = _fields(patient_digits)
    return _LARGE_FRAME % (fields, _LETTER * (_LARGE_BYTES - len(_LARGE_FRAME % (fields, b""))))


def base_ms(now_ms: int, case: Case) -> int:
    """Return the start of the first window in epoch milliseconds.

    It is recent, because brokers delete records by the age of their timestamp, but all events lie in the past.
    """
    return (now_ms - case.span_ms - 10 * WINDOW_MS) // WINDOW_MS * WINDOW_MS


def blocks(case: Case, start_ms: int, begin: int = 0, size: int = 100_000) -> Iterator[Block]:
    """Yield the records of `case`, by topic, from number `begin` on. The same `start_ms` gives the same bytes."""
    for number in event_numbers(case, begin, size):
        yield from case.program.records(case, start_ms, number)


def event_numbers(case: Case, begin: int = 0, size: int = 1_000_000) -> Iterator[Integers]:
    """Yield the numbers of the events from `begin` on, `size` at a time."""
    for first in range(begin, case.events, size):
        yield np.arange(first, min(first + size, case.events), dtype=np.int64)


def patient_digits(case: Case) -> int:
    """Return how many digits the patients' names have."""
    return max(_PATIENT_DIGITS, len(str(case.keys - 1)))


def beat_place(case: Case) -> slice:
    """Return the place of the event time in the value of every pulse."""
    pulse = _pulse(patient_digits(case))
    return slice(pulse.index(b'"beat_ms":') + len(b'"beat_ms":'), pulse.index(b',"ibi_ms"'))


def key_name(key: int, digits: int = _PATIENT_DIGITS) -> str:
    """Return the key of a patient, in a case with names of so many digits."""
    return f"p{key:0{digits}d}"


def expected_counts(case: Case) -> Integers:
    """Return the events per window (rows) and key (columns), computed from the event numbers without a stream processor."""
    counts = np.zeros(case.windows * case.keys, dtype=np.int64)
    for number in event_numbers(case):
        window = case.offset_ms(number) // WINDOW_MS
        counts += np.bincount(window * case.keys + case.patient(case, number), minlength=counts.size)
    return counts.reshape(case.windows, case.keys)


def ibi_ms(number: Integers) -> Integers:
    """Return the intervals between beats of these events: 600 to 999 ms."""
    return 600 + number * 7919 % 400


def pulses(case: Case, start_ms: int, number: Integers) -> list[Block]:
    """Return the pulses with these event numbers."""
    return [pulse_block(case, case.patient(case, number), start_ms + case.offset_ms(number), number)]


def pulse_block(case: Case, patient: Integers, beat_ms: Integers, number: Integers) -> Block:
    """Return one pulse for each patient, time and event number."""
    digits = patient_digits(case)
    keys, values = _keys_and_values(_pulse(digits), _pulse_columns(digits, patient, beat_ms, number))
    return Block(INPUT_TOPIC, _rows(keys), _rows(values))


def breath_block(case: Case, patient: Integers, breath_ms: Integers) -> Block:
    """Return one breath for each patient and time."""
    digits = patient_digits(case)
    keys, values = _keys_and_values(_breath(digits), ((patient, digits), (breath_ms, _BEAT_DIGITS)))
    return Block(BREATH_TOPIC, _rows(keys), _rows(values))


def large_pulses(case: Case, start_ms: int, number: Integers) -> list[Block]:
    """Return the pulses with these event numbers, with values of 1 KiB."""
    digits = patient_digits(case)
    columns = _pulse_columns(digits, case.patient(case, number), start_ms + case.offset_ms(number), number)
    template = _large(digits)
    keys, values = _keys_and_values(template, columns)
    holes = _holes(template, _LETTER)
    texts = np.lib.stride_tricks.sliding_window_view(_TEXT, holes.size)
    values[:, holes] = texts[number * 7919 % len(texts)]
    return [Block(INPUT_TOPIC, _rows(keys), _rows(values))]


def _pulse_columns(digits: int, patient: Integers, beat_ms: Integers, number: Integers) -> _Columns:
    return (
        (patient, digits),
        (beat_ms, _BEAT_DIGITS),
        (ibi_ms(number), _IBI_DIGITS),
        (1 + patient % _RECORDINGS, 1),
    )


def _keys_and_values(template: bytes, columns: _Columns) -> tuple[_Bytes, _Bytes]:
    """Return the keys, and the values with all digits of the template filled in. The first column has the patients."""
    digits = np.concatenate([_digits(column, width) for column, width in columns], axis=1)
    values = np.tile(np.frombuffer(template, dtype=np.uint8), (len(digits), 1))
    values[:, _holes(template, _DIGIT)] = digits
    width = columns[0][1]
    keys = np.empty((len(digits), 1 + width), dtype=np.uint8)
    keys[:, 0] = ord("p")
    keys[:, 1:] = digits[:, :width]
    return keys, values


def _holes(template: bytes, mark: bytes) -> Integers:
    return np.flatnonzero(np.frombuffer(template, dtype=np.uint8) == ord(mark))


def _digits(column: Integers, width: int) -> _Bytes:
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (column[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _rows(matrix: _Bytes) -> list[bytes]:
    """Return one `bytes` per row. Rows end in a printable character, so numpy's stripping of zero bytes changes nothing."""
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"S{matrix.shape[1]}").ravel().tolist()
    return rows
