"""The pairs that the events of two streams give, and the faults that their verdict must find."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from bench.case import APART_MS
from bench.cases import CASES
from bench.events import blocks, key_name
from bench.outputs import Verdict
from bench.pairs import Pairs, expected_pairs

CASE = replace(CASES["join"], keys=10, events=200)
START_MS = 1_700_000_040_000
EXPECTED = expected_pairs(CASE).tolist()


def _events(topic: str, field: str) -> dict[str, list[int]]:
    times: defaultdict[str, list[int]] = defaultdict(list)
    for block in blocks(CASE, START_MS, size=33):
        if block.topic == topic:
            for key, value in zip(block.keys, block.values, strict=True):
                event = json.loads(value)
                assert event["patient_id"] == key.decode()
                times[event["patient_id"]].append(event[field])
    return times


def test_should_find_the_pairs_that_a_comparison_of_all_events_finds() -> None:
    beats, breaths = _events("pulse-events", "beat_ms"), _events("breath-events", "breath_ms")
    assert sum(len(times) for times in beats.values()) == sum(len(times) for times in breaths.values()) == 100
    assert all(times == sorted(times) for times in [*beats.values(), *breaths.values()])
    found = [
        [patient, beat - START_MS, breath - START_MS]
        for patient in range(CASE.keys)
        for beat in beats[key_name(patient)]
        for breath in breaths[key_name(patient)]
        if abs(beat - breath) <= APART_MS
    ]
    assert found == EXPECTED
    assert 50 < len(found) < 100


def _judge(rows: list[list[int]]) -> Verdict:
    pairs = Pairs(CASE, START_MS)
    for patient, beat, breath in rows:
        value = {"patient_id": key_name(patient), "beat_ms": START_MS + beat, "breath_ms": START_MS + breath}
        pairs.add([key_name(patient).encode()], [json.dumps(value).encode()])
    return pairs.verdict()


def test_should_accept_each_pair_once_in_any_order() -> None:
    verdict = _judge(EXPECTED[::-1])
    assert verdict.right
    assert verdict.results == verdict.records == len(EXPECTED)
    assert verdict.digest == _judge(EXPECTED).digest


def test_should_find_missing_and_repeated_pairs() -> None:
    assert (_judge(EXPECTED[1:]).missing, _judge(EXPECTED[1:]).right) == (1, False)
    assert (_judge([*EXPECTED, EXPECTED[3]]).wrong, _judge([*EXPECTED, EXPECTED[3]]).right) == (1, False)


@pytest.mark.parametrize("row", [[0, 1, 1], [10, 0, 0], [0, -1, 0], [0, 0, APART_MS + 1], [0, APART_MS + 1, 0]])
def test_should_count_pairs_that_do_not_exist(row: list[int]) -> None:
    assert row not in EXPECTED
    verdict = _judge([*EXPECTED, row])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (0, 0, 1, False)
