"""Patients made from recordings: the beats of each are a pure function of seed, patient and time.

Each patient is one recording, looped, and shifted by a phase of its own. The loop is anchored at the epoch, so a replay
that stops and continues later continues the same hearts, and never repeats a beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demo.heartbeats.beats import Floats, Ints
from demo.heartbeats.chance import uniform
from demo.heartbeats.recordings import Recording

_PHASE = 1
"""Number of the draw that sets a patient's phase."""


@dataclass(frozen=True)
class Events:
    """Beats as columns of equal length. `number` counts a patient's beats since the epoch: the two identify a beat."""

    patient: Ints
    number: Ints
    beat_ms: Ints
    ibi_ms: Ints

    def __len__(self) -> int:
        return len(self.patient)

    def take(self, rows: npt.NDArray[np.generic]) -> Events:
        """Return these rows, by index or mask."""
        return Events(self.patient[rows], self.number[rows], self.beat_ms[rows], self.ibi_ms[rows])

    @classmethod
    def join(cls, parts: Sequence[Events]) -> Events:
        """Concatenate one or more parts."""
        return cls(
            np.concatenate([part.patient for part in parts]),
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.beat_ms for part in parts]),
            np.concatenate([part.ibi_ms for part in parts]),
        )


class Patients:
    """`count` patients: patient i is recording i modulo the number of recordings."""

    def __init__(self, recordings: Sequence[Recording], count: int, seed: int) -> None:
        self.count = count
        self._recordings = tuple(recordings)
        everyone = np.arange(count, dtype=np.int64)
        periods = np.array([recording.period_ms for recording in recordings], dtype=np.float64)
        chance: Floats = uniform(seed, _PHASE, everyone)
        self._phase_ms = (chance * periods[everyone % len(recordings)]).astype(np.int64)

    @property
    def beats_per_second(self) -> float:
        """Return the rate of all patients together, at the speed of the recordings."""
        share = [len(range(i, self.count, len(self._recordings))) for i in range(len(self._recordings))]
        return sum(n * recording.beats_per_second for n, recording in zip(share, self._recordings, strict=True))

    def recording(self, patient: int) -> str:
        """Return the name of the recording that a patient is."""
        return self._recordings[patient % len(self._recordings)].name

    def between(self, start_ms: int, end_ms: int) -> Events:
        """Return all beats in [start, end) of event time, by time, then patient."""
        parts = [self._of_recording(i, start_ms, end_ms) for i in range(len(self._recordings))]
        events = Events.join(parts)
        return events.take(np.lexsort((events.patient, events.beat_ms)))

    def _of_recording(self, which: int, start_ms: int, end_ms: int) -> Events:
        recording = self._recordings[which]
        patient = np.arange(which, self.count, len(self._recordings), dtype=np.int64)
        phase = self._phase_ms[patient]
        first = _beats_before(recording, start_ms + phase)
        counts = _beats_before(recording, end_ms + phase) - first
        # Row r of a patient is its beat number first + (r - the patient's first row).
        rows_before = np.cumsum(counts) - counts
        number = np.arange(counts.sum(), dtype=np.int64) - np.repeat(rows_before - first, counts)
        loop, beat = np.divmod(number, len(recording.at_ms))
        beat_ms = loop * recording.period_ms + recording.at_ms[beat] - np.repeat(phase, counts)
        return Events(np.repeat(patient, counts), number, beat_ms, recording.ibi_ms[beat])


def _beats_before(recording: Recording, at_ms: Ints) -> Ints:
    """Return how many beats of the endless loop are in [0, at)."""
    loop, within = np.divmod(at_ms, recording.period_ms)
    return loop * len(recording.at_ms) + np.searchsorted(recording.at_ms, within, side="left").astype(np.int64)
