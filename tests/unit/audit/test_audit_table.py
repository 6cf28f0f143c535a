"""Audited ranges are remembered per task."""

from __future__ import annotations

from tidemark.audit.ranges import Position
from tidemark.audit.table import AuditedRange, audited_until, last_audit, past_audits, write_audit
from tidemark.database import FactsDatabase
from tidemark.names import TaskId
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.verdict import Verdict


def audited(task, batch, audit_id="a", verdict=Verdict.OK):
    end = Position(
        TaskId(0, task), "1", batch, 5, {"in": 10 * batch}, StreamTimes(7, {"s": 6}), {"out": {0: batch, 1: 3}}
    )
    return AuditedRange(audit_id, 1000 + batch, batch - 1, 100, 2.5, verdict, end)


def test_should_continue_where_the_newest_audit_of_each_task_ended(tmp_path):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    assert audited_until(facts, "app") == {}
    write_audit(facts, "app", [audited(0, 5), audited(1, 3)])
    write_audit(facts, "app", [audited(0, 9, "b", Verdict.FAILED)])
    write_audit(facts, "other", [audited(0, 99)])
    write_audit(facts, "app", [])
    assert audited_until(facts, "app") == {
        TaskId(0, 0): audited(0, 9, "b", Verdict.FAILED),
        TaskId(0, 1): audited(1, 3),
    }
    assert past_audits(facts, "app", 2) == [audited(0, 9, "b", Verdict.FAILED), audited(1, 3)]
    facts.close()


def test_should_return_the_whole_of_the_last_audit_of_however_many_tasks(tmp_path):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    assert last_audit(facts, "app") == []
    write_audit(facts, "app", [audited(0, 5), audited(1, 3)])
    newest = [audited(task, 9, "b", Verdict.OK if task else Verdict.FAILED) for task in range(300)]
    write_audit(facts, "app", newest)
    write_audit(facts, "other", [audited(0, 99, "c")])
    assert last_audit(facts, "app") == newest
    facts.close()


def test_should_remember_a_task_that_has_been_idle_for_however_many_audits(tmp_path):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    write_audit(facts, "app", [audited(1, 3)])
    write_audit(facts, "app", [audited(0, batch) for batch in range(1, 10_002)])
    assert {task: one.end.batch for task, one in audited_until(facts, "app").items()} == {
        TaskId(0, 0): 10_001,
        TaskId(0, 1): 3,
    }
    facts.close()
