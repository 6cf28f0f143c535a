"""Beats in generated signals and in the recordings."""

from __future__ import annotations

import numpy as np
import pytest

from demo.heartbeats import recordings as recordings_module
from demo.heartbeats.beats import NoPulse, find, peaks, trusted
from demo.heartbeats.recordings import data_folder, recordings, signal
from tidemark.errors import PreflightFailed


def pulse(bpm: float, seconds: float = 60.0, rate_hz: float = 100.0) -> np.ndarray:
    """Systolic peak and, 0.35 of a period later, a dicrotic one of half its height; on a drifting base."""
    t = np.arange(0, seconds, 1 / rate_hz)
    phase = (t * bpm / 60) % 1
    beat = np.exp(-(((phase - 0.2) / 0.06) ** 2)) + 0.5 * np.exp(-(((phase - 0.55) / 0.08) ** 2))
    return 500 + 100 * beat + 30 * np.sin(2 * np.pi * 0.2 * t)


@pytest.mark.parametrize("bpm", [45, 60, 90, 120, 170])
def test_should_not_count_the_dicrotic_notch_as_a_beat(bpm: int):
    assert find(pulse(bpm), 100.0).bpm == pytest.approx(bpm, rel=0.02)


def test_should_lose_only_the_beats_of_an_artefact():
    samples = pulse(75)
    samples[3000:3050] += 5000
    beats = find(samples, 100.0)
    assert beats.bpm == pytest.approx(75, rel=0.02)
    assert len(beats.at_ms) >= 65


def test_should_find_no_pulse_in_a_flat_noisy_or_short_signal():
    with pytest.raises(NoPulse, match="flat"):
        peaks(np.full(6000, 512.0), 100.0)
    with pytest.raises(NoPulse, match="too few"):
        peaks(pulse(60, seconds=2), 100.0)
    with pytest.raises(NoPulse, match="too few"):
        trusted(np.array([0.0, 800.0, 1600.0]))
    with pytest.raises(NoPulse, match="plausible"):
        trusted(np.cumsum([100.0, 3000.0] * 20))


def test_should_leave_out_missed_and_false_beats():
    # A beat is missed after the tenth (an interval of 1600), one is false after the twentieth (two of 400).
    intervals = [800.0] * 10 + [1600.0] + [800.0] * 10 + [400.0, 400.0] + [800.0] * 10
    beats = trusted(np.cumsum([0.0, *intervals]))
    assert set(beats.ibi_ms.tolist()) == {800}
    assert len(beats.ibi_ms) == 30
    assert beats.at_ms[0] == 0


# What heartpy's own documentation and doctests find in these files.
@pytest.mark.parametrize(("name", "published_bpm", "within"), [("data2", 62.376, 1.5), ("data3", 96.9, 1.0)])
def test_should_compute_the_published_heart_rates_of_the_recordings(name: str, published_bpm: float, within: float):
    [recording] = [r for r in recordings() if r.name == name]
    assert recording.bpm == pytest.approx(published_bpm, abs=within)


def test_should_make_loops_of_plausible_beats_from_recordings():
    assert [r.name for r in recordings()] == ["data", "data2", "data3"]
    for r in recordings():
        assert 40 <= r.bpm <= 180
        assert np.all(np.diff(r.at_ms) > 0)
        assert r.at_ms[0] == 0
        assert r.at_ms[-1] < r.period_ms
        assert 1000 * 60 / 180 <= r.ibi_ms.min() <= r.ibi_ms.max() <= 1000 * 60 / 40


def test_should_use_the_published_sample_rates():
    assert signal("data").rate_hz == 100.0
    assert signal("data2").rate_hz == pytest.approx(116.996, abs=0.01)
    assert signal("data3").rate_hz == pytest.approx(100.42, abs=0.01)


def test_should_give_one_clear_error_when_a_package_or_file_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    assert data_folder().is_dir()
    monkeypatch.setattr(recordings_module, "data_folder", lambda: tmp_path)
    with pytest.raises(PreflightFailed, match=r"data2\.csv"):
        signal("data2")
    monkeypatch.undo()
    monkeypatch.setattr(recordings_module, "find_spec", lambda name: None)
    with pytest.raises(PreflightFailed, match="make setup"):
        data_folder()
