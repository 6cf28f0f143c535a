"""The verdict on an output topic: the faults that it must find, and what is not a fault."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bench.case import WINDOW_MS
from bench.cases import CASES
from bench.counts import FinalCounts, LastCounts, final_counts
from bench.errors import BenchFailed
from bench.outputs import Verdict

CASE = CASES["hot"].sized(2 * 60 * 50_000)
START_MS = 1_700_000_040_000
EXPECTED = np.zeros((CASE.windows, CASE.keys), dtype=np.int64)
EXPECTED[0, 7] = 3
EXPECTED[1, 8] = 2


def _judge(*records: tuple[str, str, int, int, int]) -> Verdict:
    last = LastCounts(CASE, START_MS, EXPECTED)
    last.add(
        [key.encode() for key, *_ in records],
        [
            json.dumps({"patient_id": patient, "window_start": start, "window_end": end, "pulses": pulses}).encode()
            for _, patient, start, end, pulses in records
        ],
    )
    return last.verdict()


def _count(patient: str, window: int, pulses: int) -> tuple[str, str, int, int, int]:
    start = START_MS + window * WINDOW_MS
    return patient, patient, start, start + WINDOW_MS, pulses


RIGHT = (_count("p00007", 0, 3), _count("p00008", 1, 2))


def test_should_take_the_last_of_several_updates() -> None:
    verdict = _judge(_count("p00007", 0, 1), _count("p00007", 0, 2), *RIGHT)
    assert verdict.right
    assert (verdict.records, verdict.results) == (4, 2)


def test_should_take_the_last_update_also_across_batches() -> None:
    last = LastCounts(CASE, START_MS, EXPECTED)
    for pulses in (1, 3):
        start = START_MS
        value = {"patient_id": "p00007", "window_start": start, "window_end": start + WINDOW_MS, "pulses": pulses}
        last.add([b"p00007"], [json.dumps(value).encode()])
    assert last.counts[0, 7] == 3


def test_should_find_a_missing_window() -> None:
    assert (_judge(RIGHT[0]).missing, _judge(RIGHT[0]).right) == (1, False)


@pytest.mark.parametrize("pulses", [2, 4])
def test_should_find_a_wrong_count(pulses: int) -> None:
    verdict = _judge(_count("p00007", 0, pulses), RIGHT[1])
    assert (verdict.wrong, verdict.missing, verdict.right) == (1, 0, False)


@pytest.mark.parametrize(
    "record",
    [
        _count("p00009", 2, 1),  # after the last window
        _count("p00009", -1, 1),
        _count("p50000", 0, 1),  # nobody
        ("p00001", "p00007", START_MS, START_MS + WINDOW_MS, 3),  # key and value disagree
        ("p00007", "p00007", START_MS + 1, START_MS + 1 + WINDOW_MS, 3),
        ("p00007", "p00007", START_MS, START_MS + WINDOW_MS + 1, 3),
        ("p00007", "p00007", START_MS, START_MS + WINDOW_MS, 0),
    ],
)
def test_should_count_outputs_that_no_window_expects(record: tuple[str, str, int, int, int]) -> None:
    verdict = _judge(*RIGHT, record)
    assert (verdict.unexpected, verdict.right) == (1, False)


def test_should_find_a_window_without_an_event() -> None:
    verdict = _judge(*RIGHT, _count("p00007", 1, 5))
    assert (verdict.wrong, verdict.right) == (1, False)


@pytest.mark.parametrize("value", [None, b"nonsense", b'{"patient_id":"p00007","pulse":1}', b'{"patient_id":"seven"}'])
def test_should_refuse_an_output_that_is_not_a_count(value: bytes | None) -> None:
    with pytest.raises(BenchFailed, match="the output"):
        LastCounts(CASE, START_MS, EXPECTED).add([b"p00007"], [value])


def test_should_compute_equal_digests_for_equal_outputs() -> None:
    assert _judge(*RIGHT).digest == _judge(_count("p00007", 0, 1), *RIGHT).digest
    assert _judge(*RIGHT).digest != _judge(RIGHT[0]).digest


def test_should_find_a_final_count_that_is_written_again() -> None:
    values = [
        json.dumps({"patient_id": key, "window_start": start, "window_end": end, "pulses": pulses}).encode()
        for key, _, start, end, pulses in RIGHT
    ]
    keys: list[bytes | None] = [b"p00007", b"p00008"]
    once, twice, again = (FinalCounts(CASE, START_MS, EXPECTED) for _ in range(3))
    once.add(keys, [*values])
    assert once.verdict().right
    twice.add(keys, [*values])
    twice.add(keys[:1], [values[0]])
    assert (twice.verdict().unexpected, twice.verdict().right) == (1, False)
    again.add([*keys, *keys], [*values, *values])
    assert (again.verdict().unexpected, again.verdict().right) == (2, False)


@pytest.mark.parametrize(("events", "counted"), [(6_500, 0), (6_501, 25 * 60), (6_540, 6_000), (12_540, 12_000)])
def test_should_expect_the_final_counts_of_windows_that_are_over(events: int, counted: int) -> None:
    # One event per 10 ms, in turn: number 6500 closes the first window in the partition of patient 0, which has 25 of the 100.
    case = replace(CASES["suppress"], keys=100, events=events)
    expected = final_counts(case, START_MS).expected
    assert expected.sum() == counted
    assert set(np.unique(expected)) <= {0, 60}
