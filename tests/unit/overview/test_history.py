"""The last verdicts of every check, the newest events, drills and audits, from a real database."""

from __future__ import annotations

import pytest

from tidemark.audit.ranges import Position
from tidemark.audit.suites import NOT_COMPUTED, NOTHING_NEW
from tidemark.audit.table import AuditedRange, write_audit
from tidemark.checks.verdict_table import last_verdicts, write_verdicts
from tidemark.database import FactsDatabase
from tidemark.events.event import Event, EventKind
from tidemark.events.table import newest_events, write_event
from tidemark.names import TaskId
from tidemark.overview.history import read_history
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.verdict import Finding, Verdict

APP = "app"


@pytest.fixture
def facts(tmp_path):
    database = FactsDatabase(Settings.load(var_dir=tmp_path))
    yield database
    database.close()


def wrote(facts, check, time_ms, *verdicts, app=APP):
    write_verdicts(facts, app, check, time_ms, [Finding(f"s{n}", v, "m") for n, v in enumerate(verdicts)])


def test_the_last_verdicts_should_be_those_of_the_last_run_of_each_check(facts):
    wrote(facts, "lag", 1, Verdict.FAILED, Verdict.FAILED)
    wrote(facts, "lag", 3, Verdict.OK, Verdict.WARNING)
    wrote(facts, "audit", 2, Verdict.OK)
    wrote(facts, "rto", 9, Verdict.FAILED, app="other")
    found = [(row.check, row.time_ms, row.finding.subject, row.finding.verdict) for row in last_verdicts(facts, APP)]
    assert found == [
        ("audit", 2, "s0", Verdict.OK),
        ("lag", 3, "s0", Verdict.OK),
        ("lag", 3, "s1", Verdict.WARNING),
    ]


def test_a_verdict_of_a_clock_that_was_ahead_should_not_hide_later_ones(facts):
    hour_ms = 3_600_000
    wrote(facts, "lag", 10 + hour_ms + 1, Verdict.FAILED)
    wrote(facts, "lag", 5, Verdict.OK)
    wrote(facts, "audit", 4, Verdict.FAILED)
    wrote(facts, "audit", 10 + hour_ms, Verdict.OK)
    found = [(row.check, row.finding.verdict) for row in last_verdicts(facts, APP, lambda: 10)]
    assert found == [("audit", Verdict.OK), ("lag", Verdict.OK)]


def test_a_last_run_that_is_left_out_should_be_not_enough_evidence(facts):
    """Either a clock was ahead, or that of this machine is behind. Runs that were written later end the doubt."""
    hour_ms = 3_600_000
    wrote(facts, "audit", 10 + 3 * hour_ms, Verdict.OK)
    wrote(facts, "lag", 5, Verdict.OK)
    wrote(facts, "lag", 10 + 2 * hour_ms, Verdict.FAILED)
    wrote(facts, "rto", 10 + 2 * hour_ms, Verdict.OK)

    def found():
        return [(row.check, row.time_ms, row.finding.verdict) for row in last_verdicts(facts, APP, lambda: 10)]

    assert found() == [
        ("audit", 10 + 3 * hour_ms, Verdict.NOT_ENOUGH_EVIDENCE),
        ("lag", 5, Verdict.OK),
        ("lag", 5, Verdict.NOT_ENOUGH_EVIDENCE),
        ("rto", 10 + 2 * hour_ms, Verdict.OK),
    ]
    assert "its time is 180 min from now" in last_verdicts(facts, APP, lambda: 10)[0].finding.message
    wrote(facts, "audit", 4, Verdict.OK)
    wrote(facts, "lag", 6, Verdict.WARNING)
    assert found() == [
        ("audit", 4, Verdict.OK),
        ("lag", 6, Verdict.WARNING),
        ("rto", 10 + 2 * hour_ms, Verdict.OK),
    ]


def test_the_last_deadline_verdict_of_each_instance_should_count(facts):
    def watched(time_ms, instance, verdict):
        write_verdicts(facts, APP, "rto", time_ms, [Finding(f"{APP}-{instance}", verdict, "m")])

    watched(1, 0, Verdict.FAILED)
    watched(2, 1, Verdict.FAILED)
    watched(3, 1, Verdict.OK)
    found = [(row.finding.subject, row.time_ms, row.finding.verdict) for row in last_verdicts(facts, APP)]
    assert found == [(f"{APP}-0", 1, Verdict.FAILED), (f"{APP}-1", 3, Verdict.OK)]
    (check,) = read_history(facts, APP).checks
    assert (check.time_ms, check.verdict) == (3, Verdict.FAILED)
    watched(4, 0, Verdict.OK)
    assert {row.finding.verdict for row in last_verdicts(facts, APP)} == {Verdict.OK}


def test_an_application_without_checks_should_have_no_verdicts(facts):
    assert last_verdicts(facts, APP) == []


def test_the_newest_events_should_come_first(facts):
    for at_ms in (1, 3, 2):
        write_event(facts, Event(EventKind.WAITING, APP, "1", 0, at_ms, {"why": "w"}))
    write_event(facts, Event(EventKind.WAITING, "other", "1", 0, 9, {"why": "w"}))
    assert [event.time_ms for event in newest_events(facts, APP, 2)] == [3, 2]


def audited(audit_id, time_ms, task, verdict):
    end = Position(task, "1", 5, 1, {}, StreamTimes.none(), {}, 0)
    return AuditedRange(audit_id, time_ms, 1, 10, 1.0, verdict, end)


def test_the_history_should_take_the_worst_verdict_of_the_last_audit(facts):
    write_audit(facts, APP, [audited("a1", 1, TaskId(0, 0), Verdict.FAILED)])
    write_audit(facts, APP, [audited("a2", 2, TaskId(0, n), v) for n, v in enumerate((Verdict.OK, Verdict.WARNING))])
    wrote(facts, "lag", 3, Verdict.OK, Verdict.FAILED)
    found = read_history(facts, APP)
    assert found.audit is not None
    assert (found.audit.time_ms, found.audit.verdict) == (2, Verdict.WARNING)
    check = found.check("lag")
    assert check is not None
    assert (check.verdict, len(check.of(Verdict.FAILED))) == (Verdict.FAILED, 1)
    assert found.check("retention") is None


NO_NEW_BATCH = Finding("batches", Verdict.NOT_ENOUGH_EVIDENCE, "no new batch", {NOTHING_NEW: True})
NOT_DERIVED = Finding("out", Verdict.NOT_ENOUGH_EVIDENCE, "a join", {NOT_COMPUTED: True})
BROKEN = Finding("ranges", Verdict.NOT_ENOUGH_EVIDENCE, "the check itself failed", {"broken": True})
HANGING = Finding("no_transaction_hangs", Verdict.FAILED, "m")
WELL = Finding("no_transaction_hangs", Verdict.OK, "m")


@pytest.mark.parametrize(
    ("findings", "time_ms", "verdict"),
    [
        pytest.param([BROKEN, WELL], 9, Verdict.NOT_ENOUGH_EVIDENCE, id="a check breaks, so no range is audited"),
        pytest.param([WELL, NOT_DERIVED], 9, Verdict.OK, id="what no audit can check does not count"),
        pytest.param([NO_NEW_BATCH, WELL], 3, Verdict.OK, id="an idle stream stays well"),
        pytest.param([NO_NEW_BATCH, HANGING], 3, Verdict.FAILED, id="a transaction hangs in an idle stream"),
    ],
)
def test_the_history_should_take_the_last_run_of_the_audit_whether_it_audited_a_range_or_not(
    facts, findings, time_ms, verdict
):
    write_audit(facts, APP, [audited("a1", 3, TaskId(0, 0), Verdict.OK)])
    write_verdicts(facts, APP, "audit", 9, findings)
    audit = read_history(facts, APP).audit
    assert audit is not None
    assert (audit.time_ms, audit.verdict) == (time_ms, verdict)


def test_what_an_audit_had_nothing_to_check_of_should_not_count_in_the_verdict_of_the_check(facts):
    write_verdicts(facts, APP, "audit", 9, [WELL, NOT_DERIVED])
    check = read_history(facts, APP).check("audit")
    assert check is not None
    assert check.verdict is Verdict.OK


def test_the_history_should_keep_a_failed_audit_while_there_is_no_new_batch(facts):
    write_audit(facts, APP, [audited("a1", 3, TaskId(0, 0), Verdict.FAILED)])
    write_verdicts(facts, APP, "audit", 9, [NO_NEW_BATCH, WELL])
    audit = read_history(facts, APP).audit
    assert audit is not None
    assert audit.verdict is Verdict.FAILED


def test_the_history_should_show_an_audit_whose_verdicts_could_not_be_written(facts):
    write_verdicts(facts, APP, "audit", 2, [WELL])
    write_audit(facts, APP, [audited("a1", 3, TaskId(0, 0), Verdict.FAILED)])
    audit = read_history(facts, APP).audit
    assert audit is not None
    assert audit.verdict is Verdict.FAILED


def test_the_history_should_know_no_audit_of_an_application_that_has_never_run(facts):
    write_verdicts(facts, APP, "audit", 9, [NO_NEW_BATCH])
    assert read_history(facts, APP).audit is None


def test_nothing_should_be_known_of_an_application_without_history(facts):
    found = read_history(facts, APP)
    assert (found.checks, found.drills, found.audit, found.events) == ((), (), None, ())
