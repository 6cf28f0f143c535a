"""Heartbeats in a photoplethysmogram: signal in, times of beats out. Pure functions on numpy arrays.

Band-pass, period by autocorrelation, then `find_peaks` with a distance of at least a share of that period: the dicrotic
notch, which follows each systolic peak, is a peak too and would double the rate. Artefacts of motion and of a loose sensor
are removed by their intervals. `docs/heartbeats.md` compares the result with the rates that the authors publish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemark.errors import TidemarkError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BAND_HZ = (0.5, 8.0)
"""Keeps the pulse and its shape; removes breathing, drift and the sensor's noise."""

SLOWEST_BPM, FASTEST_BPM = 40.0, 180.0
"""Rates accepted as those of a heart; the recordings' own analysis uses the same bounds."""

_CLIP = 3.0
"""A motion artefact is cut off at this many standard deviations."""

_NEAREST_BEAT = 0.6
"""Least distance of two beats, as a share of the period. The notch lies below half of it."""

_PROMINENCE = 0.5
"""Least prominence of a peak, in standard deviations of the signal."""

_NEIGHBOURS = 9
"""Number of intervals whose median is the usual interval at a place of the recording."""

_UNUSUAL = 0.3
"""An interval that differs by this share from the usual one is a missed or a false beat."""


class NoPulse(TidemarkError):
    """A recording without a plausible heart rate."""


@dataclass(frozen=True)
class Beats:
    """Beats with a trusted interval to the beat before: `at_ms` counts from the first one, `ibi_ms` is that interval."""

    at_ms: Ints
    ibi_ms: Ints

    @property
    def bpm(self) -> float:
        """Return the heart rate by the mean interval."""
        return 60_000 / float(np.mean(self.ibi_ms))


def peaks(samples: Floats, rate_hz: float) -> Ints:
    """Return the indices of the systolic peaks. Raises `NoPulse` if the signal is flat or shorter than two slow beats."""
    # Imported here, because it takes most of a second, and who imports this module often finds no beats.
    from scipy.signal import butter, correlate, find_peaks, sosfiltfilt

    if len(samples) < 2 * rate_hz * 60 / SLOWEST_BPM:
        raise NoPulse(f"{len(samples)} samples at {rate_hz:.1f} Hz are too few to find a pulse")
    pulse = sosfiltfilt(butter(2, BAND_HZ, "bandpass", fs=rate_hz, output="sos"), samples)
    spread = float(np.std(pulse))
    if spread < 1e-9:
        raise NoPulse("the signal is flat")
    pulse = np.clip(pulse, -_CLIP * spread, _CLIP * spread)
    echo = correlate(pulse, pulse)[len(pulse) - 1 :]
    shortest, longest = int(rate_hz * 60 / FASTEST_BPM), int(rate_hz * 60 / SLOWEST_BPM)
    period = shortest + int(np.argmax(echo[shortest:longest]))
    found, _ = find_peaks(pulse, distance=_NEAREST_BEAT * period, prominence=_PROMINENCE * float(np.std(pulse)))
    return np.asarray(found, dtype=np.int64)


def trusted(peak_ms: Floats) -> Beats:
    """Keep the beats whose interval is plausible and like its neighbours'; `peak_ms` ascends.

    Raises `NoPulse` if fewer than half of them are.
    """
    intervals = np.diff(peak_ms)
    if len(intervals) < _NEIGHBOURS:
        raise NoPulse(f"{len(peak_ms)} beats are too few to tell true from false ones")
    padded = np.pad(intervals, _NEIGHBOURS // 2, mode="reflect")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    plausible = (intervals >= 60_000 / FASTEST_BPM) & (intervals <= 60_000 / SLOWEST_BPM)
    kept = plausible & (np.abs(intervals - usual) <= _UNUSUAL * usual)
    if 2 * int(kept.sum()) < len(intervals):
        raise NoPulse(f"only {int(kept.sum())} of {len(intervals)} intervals are plausible")
    at_ms = np.rint(peak_ms[1:][kept]).astype(np.int64)
    return Beats(at_ms - at_ms[0], np.rint(intervals[kept]).astype(np.int64))


def find(samples: Floats, rate_hz: float) -> Beats:
    """Return the beats of one recording. Raises `NoPulse`."""
    return trusted(peaks(samples, rate_hz).astype(np.float64) * (1000.0 / rate_hz))
