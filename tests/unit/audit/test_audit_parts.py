"""An audit of many batches goes on in parts until none is left, and never sets back from where the next audit continues."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from spark_jobs.audit import run as module
from spark_jobs.audit.pipeline import OneAudit
from spark_jobs.audit.run import Audit
from tests.unit.audit.test_audit_ranges import START, TASK, history, offsets

from tidemark.audit.cut import Cut
from tidemark.audit.lineage import TopicRead
from tidemark.audit.parts import joined
from tidemark.audit.ranges import next_range
from tidemark.audit.table import audited_until, last_audit
from tidemark.database import FactsDatabase
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.verdict import Finding, Verdict

CHECK = "ranges_leave_no_gap"


def plan():
    topology = Topology("app")
    topology.stream("in", schema="id STRING", key="id").group_by_key().count(store="s").to("out")
    return topology.plan()


class Log:
    """The commit records of one task, and one audit's cuts of them."""

    def __init__(self, last: int) -> None:
        self.records = [START, *history(1, last)]

    def cut(self, before: Mapping, most: int) -> Cut:
        def following(at):
            return next_range(
                TASK, self.records, at, version="1", readable=offsets(100_000), quiet_ends=offsets(100_000),
                kept_since_ms=0, most_batches=most,
            )  # fmt: skip

        found = following(before[TASK].end if TASK in before else None)
        if found is None:
            return Cut({}, [], {}, {})
        more = {TASK: self.records[-1].batch} if following(found.end) else {}
        return Cut({TASK: found}, [], {}, {}, following=more)


class Judge(OneAudit):
    """Judges no record: a part has the verdict that `verdicts` has for its first batch, or is fine."""

    verdicts: Mapping[int, Finding] = {}

    def __post_init__(self) -> None:
        self._results = SimpleNamespace(found=SimpleNamespace(derived=[]))
        self._bases = SimpleNamespace()
        self.reading = None

    def working(self):
        return nullcontext()

    def _compacted_before(self, _reading):
        return {}

    def findings(self):
        first = [run.records[0].batch for run in self.cut.ranges.values()]
        fine = Finding(CHECK, Verdict.OK, "fine", {"expectation": CHECK, "rows": 2})
        return [self.verdicts.get(*first, fine) if first else fine], {}, {"in": TopicRead("source", 10)}


@pytest.fixture
def facts(tmp_path):
    database = FactsDatabase(Settings.load(var_dir=tmp_path))
    yield database
    database.close()


@pytest.fixture
def audit(facts, tmp_path, monkeypatch):
    """Audits a log with at most two batches in a part; with a log of its own, and the findings by first batch."""
    monkeypatch.setattr(module, "AdminClient", lambda *_: None)
    monkeypatch.setattr(module, "partition_counts", lambda *_: {})
    monkeypatch.setattr(module, "recorded", lambda *_: None)
    monkeypatch.setattr(module, "named", lambda plan, _: plan)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(environment={}, pythonExec=""))

    def run(log, whole=False, **verdicts):
        monkeypatch.setattr(module, "OneAudit", type("Judged", (Judge,), {"verdicts": verdicts.get("found", {})}))
        monkeypatch.setattr(Audit, "_cut", lambda self, _plan, before, _stalled: log.cut(before, self.most_batches))
        return Audit(spark, Settings.load(var_dir=tmp_path), facts, 2).run(plan(), whole=whole)

    return run


def position(facts):
    return audited_until(facts, "app")[TASK].end.batch


def test_should_audit_all_batches_in_parts(audit, facts):
    report = audit(Log(6))
    assert report.ranges == {"0_1": (0, 6)}
    assert report.records == 40
    assert [(f.verdict, f.evidence["rows"]) for f in report.findings] == [(Verdict.OK, 8)]
    assert position(facts) == 6


def test_should_audit_only_new_batches_the_next_time(audit, facts):
    audit(Log(6))
    assert audit(Log(8)).ranges == {"0_1": (7, 8)}
    assert position(facts) == 8


def test_should_leave_what_is_committed_during_an_audit_to_the_next_one(audit, facts):
    log = Log(4)
    cut = log.cut

    def growing(before, most):
        found = cut(before, most)
        log.records = [*log.records, *history(len(log.records), len(log.records) + 1)]
        return found

    log.cut = growing
    assert audit(log).ranges == {"0_1": (0, 5)}


def test_should_audit_the_whole_topic_and_keep_the_position(audit, facts, monkeypatch):
    audit(Log(7))
    written = []
    monkeypatch.setattr(
        "spark_jobs.audit.pipeline.write_audit", lambda *given: written.extend(one.end.batch for one in given[-1])
    )
    assert audit(Log(7), whole=True).ranges == {"0_1": (0, 7)}
    assert written == [7]


def test_should_not_set_the_position_back_if_an_audit_of_the_whole_topic_ends_early(audit, facts):
    audit(Log(7))
    broken = Finding(CHECK, Verdict.NOT_ENOUGH_EVIDENCE, "broken", {"expectation": CHECK, "rows": 0, "broken": True})
    report = audit(Log(7), whole=True, found={4: broken})
    assert (report.ranges, report.verdict) == ({"0_1": (0, 5)}, Verdict.NOT_ENOUGH_EVIDENCE)
    assert position(facts) == 7


def test_should_remember_a_task_that_started_again_from_nothing(audit, facts):
    audit(Log(7))
    again = Log(3)
    again.records = [replace(record, commit_time_ms=record.commit_time_ms + 1) for record in again.records]
    audit(again, whole=True)
    assert position(facts) == 3


def test_should_give_the_last_range_the_verdict_on_all_parts(audit, facts):
    failed = Finding(CHECK, Verdict.FAILED, "a gap", {"expectation": CHECK, "rows": 2, "unexpected": 1})
    report = audit(Log(6), found={2: failed})
    assert (report.verdict, report.ranges) == (Verdict.FAILED, {"0_1": (0, 6)})
    assert {one.verdict for one in last_audit(facts, "app")} == {Verdict.FAILED}


def test_should_have_enough_evidence_if_one_part_has_input(audit):
    log = Log(3)
    log.records[2:] = [replace(record, sources={"in": {1: (20, 20)}}) for record in log.records[2:]]
    assert audit(log).verdict is Verdict.OK
    log.records[1] = replace(log.records[1], sources={"in": {1: (10, 10)}})
    (idle,) = [found for found in audit(log, whole=True).findings if found.subject == "batches"]
    assert "read no record of a source" in idle.message


def test_should_join_the_findings_of_parts():
    fine = Finding("a", Verdict.OK, "fine", {"expectation": "a", "rows": 2})
    failed = Finding("a", Verdict.FAILED, "bad", {"expectation": "a", "rows": 5, "unexpected": 1})
    gone, thin = (Finding("in", Verdict.NOT_ENOUGH_EVIDENCE, message) for message in ("gone", "thin"))
    assert joined([[fine, gone, thin], [failed, gone], [fine]]) == [
        replace(failed, evidence={"expectation": "a", "rows": 9, "unexpected": 1}),
        gone,
        thin,
    ]


def test_should_count_a_part_without_rows_only_if_no_part_has_rows():
    fine = Finding("a", Verdict.OK, "fine", {"expectation": "a", "rows": 2})
    nothing = Finding("a", Verdict.NOT_ENOUGH_EVIDENCE, "no rows", {"expectation": "a", "rows": 0})
    broken = replace(nothing, evidence={**nothing.evidence, "broken": True})
    assert joined([[nothing], [fine]]) == [fine]
    assert joined([[nothing], [nothing]]) == [nothing]
    (found,) = joined([[fine], [broken]])
    assert found.evidence["broken"]
