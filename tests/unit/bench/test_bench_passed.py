"""The verdict on records that were passed through: each once, with the bytes that were given."""

from dataclasses import replace

import pytest
from bench.cases import CASES
from bench.events import blocks
from bench.outputs import Verdict
from bench.passed import Passed

CASE = replace(CASES["large"], keys=10, events=1_000)
START_MS = 1_700_000_040_000
(GIVEN,) = blocks(CASE, START_MS)
PAIRS = [
    (key, value)
    for key, value in zip(GIVEN.keys, GIVEN.values, strict=True)
    if int(value.split(b'"ibi_ms":')[1][:3]) >= 700
]


def _judge(pairs: list[tuple[bytes | None, bytes | None]]) -> Verdict:
    passed = Passed(CASE, START_MS)
    for first in range(0, len(pairs), 300):
        keys, values = zip(*pairs[first : first + 300], strict=True)
        passed.add(list(keys), list(values))
    return passed.verdict()


def test_should_accept_each_expected_record_once_in_any_order() -> None:
    verdict = _judge(PAIRS[::-1])
    assert verdict.right
    assert verdict.results == verdict.records == len(PAIRS)
    assert verdict.digest == _judge(list(PAIRS)).digest


def test_should_find_missing_and_repeated_records() -> None:
    assert (_judge(PAIRS[1:]).missing, _judge(PAIRS[1:]).right) == (1, False)
    assert (_judge([*PAIRS, PAIRS[0]]).wrong, _judge([*PAIRS, PAIRS[0]]).right) == (1, False)


@pytest.mark.parametrize(
    "record",
    [
        (GIVEN.keys[0], GIVEN.values[0]),  # its interval is too short
        (PAIRS[0][0], PAIRS[0][1][:-3] + b'A"}'),
        (b"p00009", PAIRS[0][1]),
        (b"p00010", PAIRS[0][1]),
        (PAIRS[0][0], PAIRS[0][1].replace(str(START_MS)[:4].encode(), b"9999", 1)),
        (PAIRS[0][0], None),
        (None, PAIRS[0][1]),
        (b"p", b"nonsense"),
    ],
)
def test_should_count_records_that_were_not_given(record: tuple[bytes | None, bytes | None]) -> None:
    verdict = _judge([*PAIRS, record])
    assert (verdict.unexpected, verdict.missing, verdict.right) == (1, 0, False)
    alone = _judge([record])
    assert (alone.unexpected, alone.missing) == (1, len(PAIRS))
