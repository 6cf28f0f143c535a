"""The rate of a replay, and a replay into a real topic."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from demo.heartbeats import replay as module
from demo.heartbeats.disorder import Disorder
from demo.heartbeats.replay import DEFAULT_PATIENTS, Replay, ReplayOptions, ReplayRate
from tidemark.errors import InvalidSettings

NOW = 1_700_000_000_000


def test_should_begin_an_endless_replay_now_and_in_real_time():
    pace = ReplayRate.of(ReplayOptions(), NOW)
    assert (pace.patients, pace.start_ms, pace.speed) == (DEFAULT_PATIENTS, NOW, 1.0)


def test_should_add_as_many_patients_as_a_rate_needs():
    for rate in (1.0, 700.0, 12_345.0):
        pace = ReplayRate.of(ReplayOptions(rate=rate), NOW)
        assert pace.speed is not None
        assert pace.speed <= 1
        assert pace.beats_per_second >= rate
        assert pace.start_ms == NOW


def test_should_begin_a_bounded_replay_in_the_past_and_never_pass_the_clock():
    for disorder in (Disorder(), Disorder(late=0.01)):
        pace = ReplayRate.of(ReplayOptions(patients=100, events=100_000, disorder=disorder), NOW)
        assert pace.speed is None
        assert pace.start_ms + 100_000 / pace.beats_per_second * 1000 < NOW


def test_should_refuse_to_run_ahead_of_the_clock_and_name_a_remedy():
    with pytest.raises(InvalidSettings, match="--patients"):
        ReplayRate.of(ReplayOptions(patients=10, rate=1000.0), NOW)
    with pytest.raises(InvalidSettings, match="or earlier"):
        ReplayRate.of(ReplayOptions(patients=10, events=100_000, start_ms=NOW - 1000), NOW)


@pytest.mark.parametrize("options", [{"patients": 0}, {"rate": -1.0}, {"events": 0}])
def test_should_refuse_numbers_that_make_no_replay(options: dict[str, int]):
    with pytest.raises(InvalidSettings, match="above 0"):
        ReplayRate.of(ReplayOptions(**options), NOW)


class Collecting:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes]] = []

    def send(self, records) -> None:
        self.records += records

    def flush(self) -> None:
        """Nothing is queued."""


def replayed(options: ReplayOptions) -> list[tuple[bytes | None, bytes]]:
    producer = Collecting()
    assert Replay(options, producer).run() == len(producer.records)
    return producer.records


def test_should_generate_the_same_records_at_any_pace_for_the_same_seed_and_start():
    start_ms = time.time_ns() // 1_000_000 - 600_000
    disorder = Disorder(seed=9, late=0.01, out_of_order=0.1, bad=0.05)
    fast = replayed(ReplayOptions(patients=40, events=2_000, start_ms=start_ms, disorder=disorder))
    paced = replayed(ReplayOptions(patients=40, events=2_000, start_ms=start_ms, rate=4_000.0, disorder=disorder))
    assert fast == paced
    assert len(fast) == 2_000


def test_should_keep_a_rate_and_end_an_endless_replay_when_stopped(monkeypatch):
    producer, now_s = Collecting(), [0.0]
    replay = Replay(ReplayOptions(rate=2_000.0), producer)

    def wait(seconds):
        """Time passes only here: a busy machine may take longer for a slice than the slice lasts."""
        now_s[0] += seconds
        if now_s[0] > 1.45:
            replay.stop.set()

    monkeypatch.setattr(replay.stop, "wait", wait)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(module, "wall_clock_ms", lambda: NOW)
    # The last of the slices of a tenth of a second begins after 1.4 s.
    assert replay.run() == len(producer.records) == pytest.approx(2_000 * 1.4, rel=0.05)
    newest = max(json.loads(value)["beat_ms"] for _, value in producer.records)
    assert abs(newest - (NOW + 1_400)) < 1_500
