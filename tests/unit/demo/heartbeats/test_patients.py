"""Patients, their disorder and their records: pure functions of a seed."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from tests.support.truth.recompute import PATIENT_MONITORING, event
from tests.support.truth.topics import Row

from demo.heartbeats.disorder import SOUND, Bad, Disorder, Timeline
from demo.heartbeats.patients import Events, Patients
from demo.heartbeats.recordings import recordings
from demo.heartbeats.records import Encoder
from tidemark.errors import InvalidSettings

START = 1_700_000_000_000
MINUTE = 60_000


def patients(count: int = 30, seed: int = 1) -> Patients:
    return Patients(recordings(), count, seed)


def identities(events: Events) -> list[tuple[int, int]]:
    return list(zip(events.patient.tolist(), events.number.tolist(), strict=True))


def test_should_join_slices_without_gap_or_overlap():
    whole = patients().between(START, START + 5 * MINUTE)
    cuts = [START, START + 1, START + 777, START + 777, START + MINUTE, START + 5 * MINUTE]
    parts = [patients().between(a, b) for a, b in itertools.pairwise(cuts)]
    joined = Events.join(parts)
    assert identities(joined) == identities(whole)
    assert np.array_equal(joined.beat_ms, whole.beat_ms)


def test_should_loop_and_shift_the_recording_of_a_patient():
    recording = recordings()[1]
    events = patients(6).between(START, START + 3 * recording.period_ms)
    mine = events.take(events.patient == 4)
    assert patients(6).recording(4) == recording.name
    assert len(mine) == 3 * len(recording.at_ms)
    one_loop = len(recording.at_ms)
    assert np.array_equal(
        mine.beat_ms[one_loop:] - mine.beat_ms[:-one_loop], np.full(2 * one_loop, recording.period_ms)
    )
    first = int(mine.number[0]) % one_loop
    assert mine.ibi_ms[0] == recording.ibi_ms[first]
    assert np.all(np.diff(mine.number) == 1)


def test_should_generate_different_patients_and_different_seeds():
    events = patients(30, seed=1).between(START, START + MINUTE)
    first_beats = {p: int(events.beat_ms[events.patient == p][0]) for p in range(30)}
    assert len(set(first_beats.values())) > 20
    assert identities(patients(30, seed=2).between(START, START + MINUTE)) != identities(events)


def test_should_generate_the_given_beats_per_second():
    p = patients(300)
    span_s = 600
    assert len(p.between(START, START + span_s * 1000)) == pytest.approx(p.beats_per_second * span_s, rel=0.01)


def test_should_keep_the_order_of_beats_without_disorder():
    timeline = Timeline(patients(), Disorder(), START)
    events = timeline.until(START + MINUTE)
    assert np.all(np.diff(events.beat_ms) >= 0)


def test_should_generate_the_same_arrivals_for_any_slices():
    disorder = Disorder(seed=3, late=0.05, out_of_order=0.2, bad=0.1)
    end = START + 10 * MINUTE
    whole = Timeline(patients(), disorder, START).until(end)
    sliced = Timeline(patients(), disorder, START)
    parts = [sliced.until(at) for at in range(START + 9_999, end, 9_999)] + [sliced.until(end)]
    assert identities(Events.join(parts)) == identities(whole)


def test_should_keep_the_shares_of_disorder_and_deliver_nothing_before_its_beat():
    disorder = Disorder(seed=3, late=0.05, out_of_order=0.2, bad=0.1)
    events = patients(200).between(START, START + 5 * MINUTE)
    delay = disorder.delay_ms(events)
    assert delay.min() == 0
    assert np.mean(delay >= 65_000) == pytest.approx(0.05, rel=0.1)
    assert np.mean((delay > 0) & (delay <= 4_000)) == pytest.approx(0.2, rel=0.1)
    badness = disorder.badness(events)
    assert np.mean(badness != SOUND) == pytest.approx(0.1, rel=0.1)
    assert set(badness[badness != SOUND].tolist()) == set(Bad)
    assert not np.any(Disorder(seed=3).delay_ms(events))


@pytest.mark.parametrize("shares", [{"late": -0.1}, {"bad": 1.1}, {"late": 0.6, "out_of_order": 0.6}])
def test_should_refuse_impossible_shares(shares: dict[str, float]):
    with pytest.raises(InvalidSettings, match="share"):
        Disorder(**shares)


def test_should_generate_json_of_the_schema_and_bad_records_that_any_reader_rejects():
    disorder = Disorder(seed=5, bad=0.3)
    p = patients(50)
    events = p.between(START, START + MINUTE)
    records = Encoder(p, disorder).records(events)
    kinds = Counter()
    for n, (kind, (key, value)) in enumerate(zip(disorder.badness(events).tolist(), records, strict=True)):
        row = Row("pulse-events", 0, n, START + MINUTE, key, value, ())
        read = event(row, PATIENT_MONITORING)
        kinds[kind] += 1
        if kind != SOUND:
            assert read is None, (Bad(kind), value)
            continue
        assert key is not None
        assert read == (key.decode(), int(events.beat_ms[n]))
        assert json.loads(value) == {
            "patient_id": f"p{int(events.patient[n]) + 1:04d}",
            "beat_ms": int(events.beat_ms[n]),
            "ibi_ms": int(events.ibi_ms[n]),
            "recording": p.recording(int(events.patient[n])),
        }
        assert key.decode() == json.loads(value)["patient_id"]
    assert set(kinds) == {SOUND, *Bad}


def test_should_have_the_key_nowhere_in_a_record_without_key():
    disorder = Disorder(seed=5, bad=1.0)
    p = patients(50)
    events = p.between(START, START + MINUTE)
    without = [
        record
        for kind, record in zip(disorder.badness(events).tolist(), Encoder(p, disorder).records(events), strict=True)
        if kind == Bad.NO_KEY
    ]
    assert without
    assert all(key is None and "patient_id" not in json.loads(value) for key, value in without)
