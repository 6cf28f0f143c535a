"""When an instance makes no progress, since when, and when that is too long: tables of samples."""

from __future__ import annotations

import pytest

from tidemark.checks.liveness import Input, Look, ended, follow, judged
from tidemark.supervision.standstill_file import Standstill
from tidemark.verdict import Verdict

DOWN = Standstill(1000, "no process of it runs")
STUCK = Standstill(1000, "it runs and commits nothing while 5 offsets wait", committed=70)
TOLD = Standstill(1000, "no process of it runs", committed=70, is_told=True)


def down(time_ms, why="no process of it runs"):
    return Look(time_ms, why)


def runs(time_ms, waiting=None, committed=70, commits=False, waits_for=""):
    return Look(time_ms, None, commits, None if waiting is None else Input(waiting, committed), waits_for)


@pytest.mark.parametrize(
    ("number", "known", "look", "now_known", "why"),
    [
        (1, None, runs(2000, commits=True), None, "it commits"),
        (2, None, runs(2000, waiting=0), None, "nothing waits: an idle stream does not stand still"),
        (3, None, runs(2000), None, "nothing is known of its input"),
        (4, None, down(2000), Standstill(2000, "no process of it runs"), "it does not run"),
        (5, DOWN, down(3000, "it is RESTORING"), Standstill(1000, "it is RESTORING"), "another reason, the same time"),
        (6, DOWN, runs(3000), DOWN, "running alone is no end: it may fall over its first batch again"),
        (7, DOWN, runs(3000, commits=True), None, "it commits again"),
        (8, DOWN, runs(3000, waiting=0), None, "it runs again and has nothing to do"),
        (
            9,
            DOWN,
            runs(3000, waiting=5),
            Standstill(1000, "it runs and commits nothing while 5 offsets wait", 70),
            "it runs again, and nothing came of it yet",
        ),
        (
            10,
            None,
            runs(2000, waiting=5),
            Standstill(2000, "it runs and commits nothing while 5 offsets wait", 70),
            "input waits: from now on",
        ),
        (
            11,
            STUCK,
            runs(9000, waiting=8),
            Standstill(1000, "it runs and commits nothing while 8 offsets wait", 70),
            "more waits, nothing was committed",
        ),
        (
            12,
            STUCK,
            runs(9000, waiting=8, committed=71),
            Standstill(9000, "it runs and commits nothing while 8 offsets wait", 71),
            "something was committed, so the time counts from here",
        ),
        (13, STUCK, runs(9000), STUCK, "the broker did not say: what was known holds"),
        (14, STUCK, down(9000), Standstill(1000, "no process of it runs", 70), "it ended meanwhile"),
        (15, TOLD, down(9000), TOLD, "told once"),
        (
            16,
            TOLD,
            runs(9000, waiting=3, committed=99),
            Standstill(9000, "it runs and commits nothing while 3 offsets wait", 99),
            "a new one may be told again",
        ),
        (17, TOLD, runs(9000, waiting=0), None, "over"),
        (
            18,
            None,
            runs(2000, waiting=5, waits_for="no broker leads out[0]"),
            Standstill(2000, "it runs and commits nothing while 5 offsets wait: no broker leads out[0]", 70),
            "it says itself what it waits for",
        ),
    ],
)
def test_should_know_since_when_an_instance_makes_no_progress(number, known, look, now_known, why):
    assert follow(known, look) == now_known, (number, why)


@pytest.mark.parametrize(
    ("stood_ms", "verdict"),
    [(0, Verdict.WARNING), (299_999, Verdict.WARNING), (300_000, Verdict.WARNING), (300_001, Verdict.FAILED)],
)
def test_should_fail_when_it_makes_no_progress_for_longer_than_allowed(stood_ms, verdict):
    finding = judged("app-0", STUCK, STUCK.since_ms + stood_ms, 300)
    assert (finding.subject, finding.verdict) == ("app-0", verdict)
    assert "5 offsets wait" in finding.message
    assert finding.evidence["stood_s"] == stood_ms / 1000
    assert ("tidemark status" in finding.message) is (verdict is Verdict.FAILED)


def test_should_be_ok_while_it_makes_progress_and_report_how_long_it_made_none():
    assert judged("app-0", None, 5, 300).verdict is Verdict.OK
    over = ended("app-0", TOLD, 421_000, 300)
    assert (over.verdict, over.message) == (Verdict.OK, "makes progress again after 420 s")


def test_should_survive_a_round_trip_and_reject_other_data():
    assert Standstill.of(TOLD.to_dict()) == TOLD
    for other in (None, [], {}, {"since_ms": 1}, {**TOLD.to_dict(), "more": 1}):
        assert Standstill.of(other) is None
