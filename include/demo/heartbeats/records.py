"""Beats as the records of `pulse-events`: JSON, keyed by patient, some of them made bad on purpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demo.heartbeats.disorder import SOUND, Bad, Disorder
from demo.heartbeats.patients import Events, Patients

_YEAR_2099_MS = 4_070_908_800_000

Record = tuple[bytes | None, bytes]
"""Kafka key and value."""


def patient_ids(count: int) -> list[str]:
    """Return the ids of so many patients, in the order of their numbers: `p0001` and up."""
    digits = max(4, len(str(count)))
    return [f"p{number:0{digits}d}" for number in range(1, count + 1)]


class Encoder:
    """Encodes events as records; ids are `p0001` and up."""

    def __init__(self, patients: Patients, disorder: Disorder) -> None:
        self._keys = [patient.encode() for patient in patient_ids(patients.count)]
        self._tails = [f', "recording": "{patients.recording(i)}"}}'.encode() for i in range(patients.count)]
        self._disorder = disorder

    def records(self, events: Events) -> list[Record]:
        """Return one record per event, in order, including bad ones."""
        keys, tails = self._keys, self._tails
        columns = (events.patient.tolist(), events.beat_ms.tolist(), events.ibi_ms.tolist())
        made: list[Record] = [
            (keys[p], b'{"patient_id": "%b", "beat_ms": %d, "ibi_ms": %d%b' % (keys[p], beat, ibi, tails[p]))
            for p, beat, ibi in zip(*columns, strict=True)
        ]
        badness = self._disorder.badness(events)
        for row in np.flatnonzero(badness != SOUND).tolist():
            made[row] = _SPOIL[Bad(badness[row])](made[row], int(events.beat_ms[row]))
        return made


def _unparsable(record: Record, beat_ms: int) -> Record:
    # Cut within the digits of the time, as a broken sender does: the rest must not be taken for an early beat.
    key, value = record
    digits = b"%d" % beat_ms
    return key, value[: value.index(digits) + len(digits) // 2]


def _retimed(text: bytes) -> Callable[[Record, int], Record]:
    return lambda record, beat_ms: (record[0], record[1].replace(b"%d" % beat_ms, text, 1))


def _without_key(record: Record, beat_ms: int) -> Record:
    return None, b"{" + record[1][record[1].index(b'"beat_ms"') :]


def _under_another_key(record: Record, beat_ms: int) -> Record:
    # As of a sender that puts its ward before the number: the record lies in another patient's partition.
    key, value = record
    return b"w1-" + (key or b""), value


_SPOIL: dict[Bad, Callable[[Record, int], Record]] = {
    Bad.UNPARSABLE: _unparsable,
    Bad.WRONG_TYPE: _retimed(b'"just now"'),
    Bad.NO_KEY: _without_key,
    Bad.NULL_TIME: _retimed(b"null"),
    Bad.NEGATIVE_TIME: _retimed(b"-1"),
    Bad.YEAR_2099: _retimed(b"%d" % _YEAR_2099_MS),
    Bad.OTHER_KEY: _under_another_key,
}
