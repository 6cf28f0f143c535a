"""What happens in the demo besides heartbeats: it fits the topologies, and is the same however it is asked for."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from demo.activity import AWAY_S, CHECK_OUT_EVERY_S, MEASURED_EVERY_S, PATIENTS, TEMPERATURES, TOPICS, Activity
from tidemark.topology_loader import load
from topologies.patient_monitoring import HIGH_TEMPERATURE

AT_S = 1_700_000_000 // CHECK_OUT_EVERY_S * CHECK_OUT_EVERY_S


def seconds(activity, number):
    return [record for at_s in range(AT_S, AT_S + number) for record in activity.second(at_s)]


@pytest.mark.parametrize("name", ["patient_monitoring", "shopping", "clicks"])
def test_every_record_should_have_the_columns_and_the_key_of_its_source(name):
    sources = {source.topic: source for s in load(name).plan().subtopologies for source in s.sources}
    records = [*Activity(40).admissions(), *seconds(Activity(40), 60)]
    checked = Counter()
    for record in records:
        source = sources.get(record.topic)
        if source is None or record.value is None:
            continue
        value = json.loads(record.value)
        assert set(value) == {column.name for column in source.schema}
        assert value[next(iter(value))] == record.key
        checked[record.topic] += 1
    assert set(checked) == set(TOPICS) & set(sources)


def test_the_same_second_should_have_the_same_events():
    assert Activity(40).second(AT_S) == Activity(40).second(AT_S)
    assert Activity(40, seed=1).second(AT_S) != Activity(40).second(AT_S)


def test_every_temperature_should_be_measured_once_in_its_time_and_some_be_high():
    found = [record for record in seconds(Activity(40), MEASURED_EVERY_S) if record.topic == TEMPERATURES]
    assert Counter(Counter(record.key for record in found).values()) == {1: 40}
    high = {record.key for record in found if json.loads(record.value)["celsius"] > HIGH_TEMPERATURE}
    assert len(high) == 8


@pytest.mark.parametrize("patients", [4, 5, 500])
def test_who_checks_out_should_come_back_and_nobody_twice_at_once(patients):
    away: dict[str, int] = {}
    left = 0
    for at_s in range(AT_S, AT_S + 600):
        for record in Activity(patients).second(at_s):
            if record.topic != PATIENTS:
                continue
            if record.value is None:
                assert record.key not in away
                away[record.key] = at_s
                left += 1
            else:
                since = away.pop(record.key, None)
                assert since is None or at_s - since == AWAY_S
    assert left == 600 // CHECK_OUT_EVERY_S
    assert len(away) == AWAY_S // CHECK_OUT_EVERY_S


def test_a_few_patients_should_never_leave():
    assert not [record for record in seconds(Activity(3), 120) if record.topic == PATIENTS]


def test_everybody_should_be_checked_in_at_first():
    found = Activity(40).admissions()
    assert len({record.key for record in found}) == 40
    assert {record.topic for record in found} == {PATIENTS}
    assert all(record.value is not None for record in found)
