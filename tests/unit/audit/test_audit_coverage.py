"""An audit reports what it cannot judge, and raises no false alarm; a pure function of ranges of commit records."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from spark_jobs.audit.attribution import AuditedTopicRole
from spark_jobs.audit.coverage import (
    has_all_letters,
    is_read,
    left,
    never_judged,
    passed,
    thinned,
    unread,
    untold,
    without_input,
)
from spark_jobs.audit.keyless import countable, not_countable
from spark_jobs.audit.reading import DLQ, SINK, SOURCE, AuditRange
from spark_jobs.audit.savepoints import Saved
from spark_jobs.audit.state import no_fold
from tests.unit.audit.test_audit_ranges import NOW_MS, START, TASK, history, offsets, position, ranged, record

from tidemark.audit.contracts import contracts
from tidemark.audit.cut import Cut
from tidemark.audit.derivable import derivable
from tidemark.audit.expectations import checks_of
from tidemark.audit.ranges import Base, PassedOver
from tidemark.audit.suites import NOT_COMPUTED, NOTHING_NEW, overall
from tidemark.commit.record import CommitKind
from tidemark.errors import CopyUnusable
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.builder import Topology
from tidemark.topology.contracts import expect
from tidemark.verdict import Finding, Verdict

RUN = replace(ranged(history(1, 3)), task=TASK)
"""Batches 2 and 3, which read [20, 40) and were committed at NOW_MS."""
IN = TopicPartition("in", 1)


def plan():
    topology = Topology("app")
    counted = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key().count(name="n", store="s")
    counted.to("out", expects=[expect("n", not_null=True)])
    odd = counted.to_stream().process("module:Processor", emits="y BIGINT")
    odd.to("odd", expects=[expect("y", not_null=True)])
    return topology.plan()


def reading(lost=()):
    roles = {"in": SOURCE, "out": SINK, "app-dlq": DLQ}
    made = {topic: AuditedTopicRole(role, 0, own=True, tasks=2, placed=None) for topic, role in roles.items()}
    return AuditRange(made, {}, {}, frozenset(lost))


def summary(read, thin=(), without=None, not_derived=()):
    findings = untold(read, thin, not_derived, without or {}, [c for c in contracts(plan()) if c.topic == "out"])
    assert {found.verdict for found in findings} <= {Verdict.NOT_ENOUGH_EVIDENCE}
    return {found.subject: found.message for found in findings}


@pytest.mark.parametrize(
    ("before_ms", "kept_from", "is_thin"),
    [
        (None, 0, False),
        (NOW_MS - 1, 20, False),
        (NOW_MS, 20, False),
        (NOW_MS + 1, 20, True),
        # Its records are older than their batches are: the first that is young enough lies behind the beginning.
        (NOW_MS - 1, 21, False),
        (NOW_MS - 1, 22, True),
        (NOW_MS - 1, 500, True),
    ],
)
def test_should_not_treat_a_compacted_source_as_complete_once_records_may_be_removed(before_ms, kept_from, is_thin):
    compacted = {} if before_ms is None else {"in": before_ms, "out": NOW_MS + 1}
    cut = Cut({TASK: RUN}, [], {}, {})
    assert thinned(plan(), cut, compacted, {IN: kept_from}) == (frozenset(["in"]) if is_thin else frozenset())


@pytest.mark.parametrize(("before_ms", "is_possible"), [(NOW_MS - 1, True), (NOW_MS, True), (NOW_MS + 1, False)])
def test_should_not_sum_up_a_changelog_that_may_have_been_compacted_since_the_run_began(before_ms, is_possible):
    why = no_fold(RUN, "log", {"log": before_ms})
    assert (why is None) is is_possible
    assert is_possible or "may have been compacted since batch 2" in why
    assert no_fold(RUN, "log", {}) is None


def test_should_report_that_a_store_without_a_changelog_has_no_base():
    assert "logging=False" in no_fold(RUN, None, {})


def test_should_leave_out_dead_letters_when_the_oldest_of_them_have_expired():
    assert has_all_letters(reading())
    assert has_all_letters(reading(lost=["in"]))
    assert not has_all_letters(reading(lost=["app-dlq"]))
    assert summary(reading()) == {}
    assert "missing dead letters are not checked" in summary(reading(lost=["app-dlq"]))["app-dlq"]


def test_should_say_why_values_are_not_recomputed():
    assert "its beginning has been deleted" in summary(reading(lost=["in"]))["in"]
    assert "the topic is compacted" in summary(reading(), thin=["in"])["in"]
    assert (
        "no results to continue from"
        in summary(reading(), without={"out": "task 0_1 has no results to continue from"})["out"]
    )


def test_should_count_records_without_a_key_only_when_all_tasks_begin_and_end_at_the_same_offsets():
    both = {task: replace(ranged(history(4, 5), position(3)), task=task) for task in (TaskId(0, 0), TASK)}
    read = AuditRange({"out": AuditedTopicRole(SINK, 0, own=False, tasks=2, placed=2)}, {}, {}, frozenset())

    def is_counted(runs):
        return countable(read, Cut(runs, [], {}, {})) == {"out"}

    assert is_counted(both)
    assert not is_counted({TASK: both[TASK]})
    assert not is_counted(both | {TASK: replace(both[TASK], until=offsets(101))})
    first, *rest = both[TASK].records
    later = (replace(first, ends_before=offsets(81)), *rest)
    # Between an audit and a task's first batch the task wrote nothing, but of other batches that is not known.
    assert is_counted(both | {TASK: replace(both[TASK], records=later)})
    assert not is_counted(both | {TASK: replace(both[TASK], records=later, base=Base.CHANGELOG)})
    new = {task: replace(run, base=Base.EMPTY) for task, run in both.items()}
    assert is_counted(new | {TASK: replace(new[TASK], records=later)})
    (found,) = not_countable(["out"])
    assert overall([found]) is Verdict.NOT_ENOUGH_EVIDENCE


@pytest.mark.parametrize(
    "gap", [{"lost": ["in"]}, {"lost": ["app-dlq"]}, {"thin": ["in"]}, {"without": {"out": "the results are gone"}}]
)
def test_should_count_what_this_audit_could_not_look_at_in_the_verdict(gap):
    findings = untold(reading(gap.get("lost", ())), gap.get("thin", ()), [], gap.get("without", {}), [])
    ok = Finding("commits", Verdict.OK, "each batch begins where the one before it ended")
    assert overall([ok, *findings]) is Verdict.NOT_ENOUGH_EVIDENCE


def test_should_not_count_what_no_audit_of_the_topology_can_check_in_the_verdict():
    findings = untold(reading(), [], derivable(plan()).not_derived, {}, contracts(plan()))
    assert {found.subject for found in findings} == {"odd", "contract of odd"}
    assert overall([*findings, Finding("commits", Verdict.OK, "each batch was counted")]) is Verdict.OK


def test_should_leave_out_checks_of_batches_only_when_the_topology_does_not_allow_them():
    checks = checks_of("accounts", exactly_once=True)

    def left_out(topology_plan, subtopologies):
        findings = never_judged(topology_plan, derivable(topology_plan), subtopologies, checks)
        assert all(found.evidence[NOT_COMPUTED] for found in findings)
        return {found.subject for found in findings}

    assert left_out(plan(), {0}) == set()
    topology = Topology("app")
    records = topology.stream("in", schema="id STRING, other STRING", key="id")
    records.repartition("other", name="by-other").group_by_key().count(store="s").to("out")
    moved = topology.plan()
    (route,) = moved.repartition_topics
    (after,) = [s.index for s in moved.subtopologies if route in s.source_topics]
    assert left_out(moved, {1 - after}) == {"late_records_are_accounted_for"}
    assert left_out(moved, {after}) == {check.name for check in checks}
    assert left_out(moved, {0, 1}) == {"late_records_are_accounted_for"}


def test_should_report_that_a_sink_after_a_processor_and_its_contract_were_not_checked():
    ruled = contracts(plan())
    assert {contract.topic: is_read(contract, reading()) for contract in ruled} == {"out": True, "odd": False}
    findings = untold(reading(), [], derivable(plan()).not_derived, {}, ruled)
    messages = {found.subject: found.message for found in findings}
    assert "its records come from a Process" in messages["odd"]
    assert "its records are not counted either" in messages["odd"]
    assert "its contract is not checked" in messages["contract of odd"]
    assert "contract of out" not in messages


def test_should_say_that_batches_without_input_prove_nothing():
    idle = record(2, at=(20, 20))
    for runs, reason in (({}, "no new batch"), ({TASK: ranged([START, idle])}, "read no record of a source")):
        (found,) = without_input(Cut(runs, [], {}, {}))
        assert (found.subject, found.verdict) == ("batches", Verdict.NOT_ENOUGH_EVIDENCE)
        assert reason in found.message
        assert overall([found]) is Verdict.NOT_ENOUGH_EVIDENCE
        assert found.evidence.get(NOTHING_NEW, False) is (not runs), (
            "only without new batches does the last audit still hold"
        )
    assert without_input(Cut({TASK: ranged([START, idle, record(3, at=(20, 21))])}, [], {}, {})) == []
    # The offsets of a rewind are no input.
    rewind = record(4, CommitKind.REWIND, at=(40, 10))
    assert without_input(Cut({TASK: ranged([rewind, record(5, at=(10, 10))], position(3))}, [], {}, {})) != []


@pytest.mark.parametrize(
    ("most", "whole", "is_told"), [(2, False, True), (3, False, False), (3, True, True), (2, True, True)]
)
def test_should_say_how_many_batches_an_audit_does_not_reach(most, whole, is_told):
    # With fewer than it may examine, the range ends at a rewind, where the next audit goes on.
    found = left(Cut({TASK: RUN}, [], {}, {}, left={TASK: 7000}), most, whole=whole)
    assert [one.subject for one in found] == ["batches"] * is_told
    assert all("7,000 of task 0_1" in one.message for one in found)
    assert not found or overall(found) is Verdict.NOT_ENOUGH_EVIDENCE
    assert left(Cut({TASK: RUN}, [], {}, {}), most, whole=whole) == []


class Copies:
    """Savepoints of batch 3 for every store; none of them can be read."""

    def find(self, tasks):
        checkpoint = StoreCheckpoint("app", "1", "s", "", 3, NOW_MS, {}, 0, 0)
        return {task: {"s": [StateCopy(SourceOfState.SAVEPOINT, checkpoint, "here", 1)]} for task in tasks}

    def fetch(self, copy, task, store, folder):
        raise CopyUnusable(f"{copy.location}: the checksum of {store} differs")


def test_should_report_a_savepoint_that_cannot_be_read_under_its_expectation(tmp_path):
    checks = checks_of("savepoints", exactly_once=True)
    saved = Saved(SimpleNamespace(cut=Cut({TASK: RUN}, [], {}, {})), plan(), Copies(), tmp_path)
    assert saved.table() is None
    (found,) = unread(saved.unreadable, checks)
    assert (found.subject, found.verdict) == ("a_savepoint_is_the_changelog_folded", Verdict.NOT_ENOUGH_EVIDENCE)
    assert "0_1/s: here: the checksum of s differs; run `tidemark savepoint verify NAME`" in found.message
    assert overall([found]) is Verdict.NOT_ENOUGH_EVIDENCE
    assert unread({}, checks) == []


def test_should_name_the_batches_that_were_skipped_and_include_them_in_the_verdict():
    (found,) = passed([PassedOver(TASK, 4, 9, "a rescale came after them", "audit before it")])
    assert (found.subject, found.verdict) == ("task 0_1", Verdict.NOT_ENOUGH_EVIDENCE)
    assert found.message == "batches 4 to 9 are not audited: a rescale came after them; audit before it"
    assert overall([found]) is Verdict.NOT_ENOUGH_EVIDENCE
