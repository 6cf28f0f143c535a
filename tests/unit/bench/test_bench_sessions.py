"""The sessions that the events give, and the faults that their verdict must find."""

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from bench.case import GAP_MS
from bench.cases import CASES
from bench.events import key_name
from bench.outputs import Verdict
from bench.sessions import Sessions, expected_sessions, shifts

# A patient has an event per 5 s of each minute of presence, and is present several times.
CASE = replace(CASES["sessions"], keys=10, interval_ms=10_000, events=400)
START_MS = 1_700_000_040_000
EXPECTED = expected_sessions(CASE).tolist()


def test_should_find_the_sessions_that_a_walk_over_the_events_finds() -> None:
    number = np.arange(CASE.events)
    times: defaultdict[int, list[int]] = defaultdict(list)
    for patient, offset_ms in zip(shifts(CASE, number).tolist(), CASE.offset_ms(number).tolist(), strict=True):
        times[patient].append(offset_ms)
    found = []
    for patient in sorted(times):
        session: list[int] = []
        for offset_ms in times[patient]:
            if session and offset_ms - session[-1] > GAP_MS:
                found.append([patient, session[0], session[-1], len(session)])
                session = []
            session.append(offset_ms)
        found.append([patient, session[0], session[-1], len(session)])
    assert found == EXPECTED
    assert len(times) == CASE.keys
    assert len(found) > 2 * CASE.keys


def test_should_keep_half_of_the_patients_present_at_any_time() -> None:
    case = replace(CASES["sessions"], keys=1_000, events=130_000)
    patient = shifts(case, np.arange(case.events))
    for second in range(130):
        assert len(set(patient[second * 1_000 : (second + 1) * 1_000].tolist())) in range(500, 520)


def _judge(rows: list[list[int]], *more: tuple[bytes | None, bytes | None]) -> Verdict:
    sessions = Sessions(CASE, START_MS)
    for patient, start, end, pulses in rows:
        name = key_name(patient)
        value = {"patient_id": name, "window_start": START_MS + start, "window_end": START_MS + end, "pulses": pulses}
        sessions.add([name.encode()], [json.dumps(value).encode()])
    for key, value_bytes in more:
        sessions.add([key], [value_bytes])
    return sessions.verdict()


def test_should_take_the_last_record_of_a_session_and_leave_out_deletions() -> None:
    patient, start, *_ = EXPECTED[0]
    verdict = _judge([[patient, start, start, 1], *EXPECTED], (key_name(patient).encode(), None))
    assert verdict.right
    assert (verdict.results, verdict.records) == (len(EXPECTED), len(EXPECTED) + 2)
    assert verdict.digest == _judge(EXPECTED).digest


def test_should_find_a_missing_session() -> None:
    verdict = _judge(EXPECTED[1:])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (1, 0, 0, False)
    assert _judge([]).missing == len(EXPECTED)


@pytest.mark.parametrize("place", [2, 3])
def test_should_find_a_wrong_end_and_a_wrong_count(place: int) -> None:
    last = [*EXPECTED[-1]]
    last[place] -= 1
    verdict = _judge([*EXPECTED[:-1], last])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (0, 1, 0, False)


@pytest.mark.parametrize("row", [[0, 1, 2, 3], [10, 0, 1, 1], [0, -1, 1, 1], [0, CASE.span_ms, CASE.span_ms, 1]])
def test_should_count_sessions_that_nobody_had(row: list[int]) -> None:
    assert [row[0], row[1]] not in [expected[:2] for expected in EXPECTED]
    verdict = _judge([*EXPECTED, row])
    assert (verdict.missing, verdict.wrong, verdict.unexpected, verdict.right) == (0, 0, 1, False)
