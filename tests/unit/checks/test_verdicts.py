"""Verdicts and their history."""

from __future__ import annotations

import pytest

from tidemark.checks.verdict_table import past_verdicts, write_verdicts
from tidemark.database import FactsDatabase
from tidemark.settings import Settings
from tidemark.verdict import Finding, Verdict, worst

FINE = Finding("t[0]", Verdict.OK, "as it should be", {"lag": 3})
THIN = Finding("t[1]", Verdict.NOT_ENOUGH_EVIDENCE, "one sample of two; wait")
ODD = Finding("t[2]", Verdict.WARNING, "grows; look at it")
BAD = Finding("t[3]", Verdict.FAILED, "stuck; restart it", {"lag": None})


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], Verdict.NOT_ENOUGH_EVIDENCE),
        ([FINE], Verdict.OK),
        ([FINE, THIN], Verdict.NOT_ENOUGH_EVIDENCE),
        ([THIN, ODD, FINE], Verdict.WARNING),
        ([BAD, ODD], Verdict.FAILED),
    ],
)
def test_should_report_the_worst_verdict(findings, expected):
    assert worst(findings) is expected


def test_should_return_the_history_newest_first(tmp_path):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    write_verdicts(facts, "app", "lag", 10, [FINE, BAD])
    write_verdicts(facts, "app", "retention", 20, [ODD])
    write_verdicts(facts, "other", "lag", 30, [FINE])
    write_verdicts(facts, "app", "lag", 40, [])
    assert [(row.check, row.time_ms, row.finding) for row in past_verdicts(facts, "app")] == [
        ("retention", 20, ODD),
        ("lag", 10, BAD),
        ("lag", 10, FINE),
    ]
    assert [row.finding for row in past_verdicts(facts, "app", "lag", limit=1)] == [BAD]
    assert list(past_verdicts(facts, "app", since_ms=21)) == []


def test_should_keep_a_verdict_with_characters_that_a_database_refuses(tmp_path):
    """They come from keys and values of records: PostgreSQL stores no NUL, and no database half of a surrogate pair."""
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    write_verdicts(
        facts, "app", "audit", 10, [Finding("t\x00", Verdict.FAILED, "key=a\x00b\ud800é", {"key": "a\x00b"})]
    )
    (row,) = past_verdicts(facts, "app")
    assert row.finding == Finding(r"t\x00", Verdict.FAILED, r"key=a\x00b\ud800é", {"key": "a\x00b"})
