"""The verdict of a drill's comparison: each rule at its boundary, without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.drill.age import drill_age
from tidemark.drill.comparison import distance
from tidemark.drill.rebuild import Built, SavedState
from tidemark.drill.store_diff import EXAMPLES, DifferenceKind, compare
from tidemark.drill.verdicts import judge
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.drill_history.report import DrillReport, RebuildMethod, StoreDrill
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.redaction import redacted
from tidemark.restore.bounds import EvidenceBounds, Keeping
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.plan import Guarantee, StoreKind, StoreSpec
from tidemark.verdict import Verdict

HOUR, DAY = 3_600_000, 86_400_000
NOW = 1_700_000_000_000
SEGMENT = 60_000
WINDOWS = StoreSpec("counts", StoreKind.WINDOW, 6 * HOUR, SEGMENT)
CHECKPOINT = StoreCheckpoint("app", "1", "counts", "3:n=count<i8", 5, NOW, {"in": 50}, NOW, 40)
TASK = TaskId(0, 1)
STATE = SavedState("s1", TASK, WINDOWS, StateCopy(SourceOfState.SAVEPOINT, CHECKPOINT, "s1/0_1.json"), NOW)
EVERYTHING = EvidenceBounds(None, None, None)


def store_of(contents):
    """From `{segment: {key: value}}`."""
    store = MemoryStore()
    writes = [Writes(segment, list(held), list(held.values())) for segment, held in contents.items()]
    store.put_many(writes, CHECKPOINT, None)
    return store


SAVED = {1: {b"a": b"1", b"b": b"2"}, 2: {b"a": b"3"}}


@pytest.mark.parametrize(
    ("rebuilt", "expected"),
    [
        (SAVED, []),
        ({1: {b"a": b"1", b"b": b"9"}, 2: {b"a": b"3"}}, [(DifferenceKind.ALTERED, 1, b"b", b"2", b"9")]),
        ({1: {b"a": b"1"}, 2: {b"a": b"3"}}, [(DifferenceKind.MISSING, 1, b"b", b"2", None)]),
        ({1: {b"a": b"1", b"b": b"2"}}, [(DifferenceKind.MISSING, 2, b"a", b"3", None)]),
        ({**SAVED, 3: {b"c": b""}}, [(DifferenceKind.EXTRA, 3, b"c", None, b"")]),
        ({1: {b"a": b"1", b"b": b"2"}, 3: {b"a": b"3"}},
         [(DifferenceKind.MISSING, 2, b"a", b"3", None), (DifferenceKind.EXTRA, 3, b"a", None, b"3")]),
    ],
)  # fmt: skip
def test_should_distinguish_altered_missing_and_extra_keys(rebuilt, expected):
    found = compare(store_of(SAVED), store_of(rebuilt), EVERYTHING)
    assert [(d.kind, d.segment, d.key, d.saved, d.rebuilt) for d in found.first] == expected
    assert found.different == len(expected)
    assert found.keys == sum(len(held) for held in rebuilt.values())
    assert found.size_bytes == sum(len(k) + len(v) for held in rebuilt.values() for k, v in held.items())


def test_should_count_all_and_name_the_first_of_each_kind():
    saved = {1: {b"%03d" % n: b"1" for n in range(100)}}
    rebuilt = {1: {b"%03d" % n: b"2" for n in range(50)}}
    found = compare(store_of(saved), store_of(rebuilt), EVERYTHING)
    assert (found.altered, found.missing) == (50, 50)
    assert [d.key for d in found.first] == [b"%03d" % n for n in (*range(EXAMPLES), *range(50, 50 + EXAMPLES))]


@pytest.mark.parametrize(("first_live", "different", "expired"), [(1, 2, 0), (2, 1, 3), (3, 0, 4)])
def test_should_not_compare_what_has_expired(first_live, different, expired):
    rebuilt = {1: {b"a": b"1", b"x": b"2", b"b": b"2"}, 2: {b"a": b"0"}}
    found = compare(store_of(SAVED), store_of(rebuilt), EvidenceBounds(first_live, None, None))
    assert (found.different, found.expired, found.compared) == (different, expired, 4 - expired)


@pytest.mark.parametrize(
    ("first_present", "first_kept", "missing", "aged", "deleted"),
    [
        (None, None, 3, 0, 0),
        # Newer than what the broker has left: it would be there, however little the broker keeps.
        (None, 9, 3, 0, 0),
        (1, 9, 3, 0, 0),
        (2, 9, 1, 2, 0),
        (3, 9, 0, 3, 0),
        # Deleted, and not by age.
        (3, None, 0, 0, 3),
        (3, 2, 0, 2, 1),
    ],
)
def test_should_leave_out_and_count_missing_keys_only_when_their_records_may_be_deleted(
    first_present, first_kept, missing, aged, deleted
):
    bounds = EvidenceBounds(None, first_kept, first_present)
    found = compare(store_of(SAVED), store_of({0: {b"z": b"1"}}), bounds)
    assert (found.missing, found.aged, found.deleted, found.extra) == (missing, aged, deleted, 1)
    assert (found.compared, found.left_out) == (missing + 1, aged + deleted)


def test_should_report_a_key_as_missing_when_a_tombstone_deletes_it():
    found = compare(store_of(SAVED), store_of({}), EvidenceBounds(None, None, 3), {b"b"})
    assert (found.missing, found.deleted) == (1, 2)
    assert [(d.kind, d.key) for d in found.first] == [(DifferenceKind.MISSING, b"b")]


def built(after_ms=0, fault=None):
    return Built(0, 40, 40, 0.5, NOW + after_ms, fault)


def verdict_of(one, rebuilt):
    found = compare(store_of(SAVED), store_of(rebuilt), EVERYTHING)
    return judge(STATE, RebuildMethod.CHANGELOG, one, found, ["altered b"] * found.altered, Keeping("t", 600_000, None))


@pytest.mark.parametrize(
    ("after_ms", "rebuilt", "verdict"),
    [
        (599_999, SAVED, Verdict.OK),
        (600_000, SAVED, Verdict.NOT_ENOUGH_EVIDENCE),
        (600_001, SAVED, Verdict.NOT_ENOUGH_EVIDENCE),
        (599_999, {1: SAVED[1]}, Verdict.FAILED),
        # What differs may be compaction's doing.
        (600_000, {1: SAVED[1]}, Verdict.NOT_ENOUGH_EVIDENCE),
    ],
)
def test_should_not_judge_what_was_read_after_the_compaction_lag(after_ms, rebuilt, verdict):
    assert verdict_of(built(after_ms), rebuilt).verdict is verdict


@pytest.mark.parametrize(("before_ms", "verdict"), [(NOW, Verdict.OK), (NOW + 1, Verdict.NOT_ENOUGH_EVIDENCE)])
def test_should_not_judge_a_savepoint_from_before_the_compaction_lag_was_raised(before_ms, verdict):
    keeping = Keeping("t", 600_000, None, before_ms)
    found = compare(store_of(SAVED), store_of(SAVED), EVERYTHING)
    assert judge(STATE, RebuildMethod.CHANGELOG, built(), found, [], keeping).verdict is verdict


def test_should_ask_for_a_savepoint_from_after_the_raise_of_the_compaction_lag():
    """Values that were superseded under the smaller value may be gone, however old the setting says that they may be."""
    assert "raise it, take a savepoint after that, and drill again" in verdict_of(built(600_000), SAVED).message


PURGED = EvidenceBounds(None, None, 3)


@pytest.mark.parametrize(
    ("saved", "rebuilt", "bounds", "verdict", "said"),
    [
        (SAVED, SAVED, PURGED, Verdict.OK, "3 keys equal"),
        # One key newer than the purge was compared; the two others nobody can vouch for.
        (SAVED, {2: SAVED[2]}, PURGED, Verdict.NOT_ENOUGH_EVIDENCE, "2 keys of the savepoint have no record"),
        (SAVED, {}, PURGED, Verdict.NOT_ENOUGH_EVIDENCE, "3 keys of the savepoint have no record"),
        ({}, {}, PURGED, Verdict.NOT_ENOUGH_EVIDENCE, "nothing is left of t to compare with"),
        (SAVED, {}, EvidenceBounds(None, 3, 3), Verdict.NOT_ENOUGH_EVIDENCE, "left out: 3 past the broker's retention"),
        (SAVED, {2: SAVED[2]}, EvidenceBounds(None, 2, 2), Verdict.OK, "1 keys equal, left out: 2 past the broker's"),
        # A whole changelog that holds nothing says so.
        ({}, {}, EVERYTHING, Verdict.OK, "holds no live key, and neither does its changelog"),
    ],
)
def test_should_never_pass_when_nothing_was_compared(saved, rebuilt, bounds, verdict, said):
    found = compare(store_of(saved), store_of(rebuilt), bounds)
    judged = judge(STATE, RebuildMethod.CHANGELOG, built(), found, [], Keeping("t", 600_000, None))
    assert judged.verdict is verdict
    assert said in judged.message
    assert (judged.compared, judged.left_out, judged.differing) == (found.compared, found.left_out, 0)


@pytest.mark.parametrize(
    ("min_compaction_lag_ms", "verdict", "said"),
    [
        (
            0,
            Verdict.NOT_ENOUGH_EVIDENCE,
            "values of the savepoint may be compacted away; raise it, take a savepoint after that, and drill again",
        ),
        (10**12, Verdict.FAILED, "find the program that writes to t, and do not restore from the changelog alone"),
    ],
)
def test_should_say_the_same_without_records(min_compaction_lag_ms, verdict, said):
    found = compare(store_of(SAVED), store_of({}), EVERYTHING)
    keeping = Keeping("t", min_compaction_lag_ms, None)
    full = judge(STATE, RebuildMethod.CHANGELOG, built(), found, ["missing Jane Doe"], keeping).finding
    shown = redacted(full)
    assert (shown.verdict, shown.subject) == (verdict, full.subject)
    assert said in shown.message
    assert shown.message == full.message.replace(
        "missing Jane Doe", "the keys are in `tidemark drill history NAME --json`"
    )
    assert "first" not in shown.evidence


def test_should_name_differing_keys_and_fail_a_store_that_cannot_be_rebuilt():
    differs = verdict_of(built(), {1: {b"a": b"1", b"b": b"9"}, 2: {b"a": b"3"}})
    assert "1 keys differ from savepoint s1 (1 altered, 0 missing, 0 extra): altered b" in differs.message
    assert "the store or its changelog is wrong, and a drill cannot tell which" in differs.message
    broken = judge(STATE, RebuildMethod.CHANGELOG, built(fault="too short"), None, (), Keeping("t", 600_000, None))
    assert broken.verdict is Verdict.FAILED
    assert broken.message == "it cannot be rebuilt: too short"


@pytest.mark.parametrize(
    ("passed_ms", "verdict"),
    [
        (None, Verdict.FAILED),
        (NOW - 7 * DAY + 1, Verdict.OK),
        (NOW - 7 * DAY, Verdict.OK),
        (NOW - 7 * DAY - 1, Verdict.FAILED),
        (NOW + 5, Verdict.OK),
        (NOW + DAY // 24, Verdict.OK),
        (NOW + DAY // 24 + 1, Verdict.NOT_ENOUGH_EVIDENCE),
        (NOW + 8 * DAY, Verdict.NOT_ENOUGH_EVIDENCE),
    ],
)
def test_should_alert_when_the_last_passing_drill_is_too_old(passed_ms, verdict):
    found = drill_age(passed_ms, (), 7 * DAY, NOW)
    assert found.verdict is verdict
    assert ("restore_drill" in found.message) == (verdict is not Verdict.OK)


def test_should_warn_when_the_last_passing_drill_was_of_earlier_stores_until_the_next_is_due():
    assert drill_age(NOW - 7 * DAY - 1, ["0_0/n"], 7 * DAY, NOW).verdict is Verdict.FAILED
    found = drill_age(NOW - 2 * DAY, ["0_0/n", "0_1/n"], 7 * DAY, NOW)
    assert found.verdict is Verdict.WARNING
    assert "passed 2d ago" in found.message
    assert "did not compare the present store 0_0/n and 1 more, which an upgrade, a rescale or a reset" in found.message


def test_should_report_how_far_the_application_is_ahead_in_offsets_and_seconds():
    class Committed:
        offset = 62

    class Record:
        batch, commit_time_ms = 7, NOW + 2500

    facts = {TASK: TaskFacts(TASK, {TopicPartition("in", 1): Committed}, Record, {}, {})}
    assert distance([STATE, STATE], facts) == (12, 2.5)
    Record.batch = 5
    Committed.offset = 50
    assert distance([STATE], facts) == (0, 0.0)


def report_of(verdict, followed=3, guarantee=Guarantee.EXACTLY_ONCE):
    store = StoreDrill(
        "0_1",
        "counts",
        RebuildMethod.CHANGELOG,
        "s1",
        verdict,
        "summary",
        records=10,
        keys=4,
        bytes=80,
        seconds=2.0,
        compared=4,
    )
    return DrillReport("d1", "app", "1", guarantee, NOW, NOW + 5, ("s1",), (store,), (), followed, 3, ())


@pytest.mark.parametrize(
    ("verdict", "followed", "whole"),
    [
        (Verdict.OK, 3, Verdict.OK),
        (Verdict.OK, 2, Verdict.NOT_ENOUGH_EVIDENCE),
        (Verdict.FAILED, 2, Verdict.FAILED),
    ],
)
def test_should_report_the_worst_verdict_of_stores_and_following(verdict, followed, whole):
    assert report_of(verdict, followed).verdict is whole


def test_should_not_pass_when_all_stores_are_empty():
    report = report_of(Verdict.OK)
    empty = replace(report.stores[0], keys=0, compared=0, is_whole=True)
    found = replace(report, stores=(empty,))
    assert found.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    (finding,) = [finding for finding in found.findings if finding.verdict is Verdict.NOT_ENOUGH_EVIDENCE]
    assert "0 keys compared, 0 left out, 0 differ" in finding.message
    assert found.to_dict()["figures"]["whole changelog"]["compared"] == 0
    one_more = replace(found, stores=(empty, report.stores[0]))
    assert one_more.verdict is Verdict.OK


@pytest.mark.parametrize(
    ("left_out", "said"),
    [((), "none of its stores: there is"), (("n: in memory",), "none of its stores (n: in memory): there")],
)
def test_should_report_that_there_was_nothing_to_rebuild(left_out, said):
    report = replace(report_of(Verdict.OK, followed=0), stores=(), not_compared=left_out)
    (finding,) = report.findings
    assert (report.verdict, finding.subject) == (Verdict.NOT_ENOUGH_EVIDENCE, "app")
    assert said in finding.message


def test_should_report_rates_and_the_weaker_claim_under_at_least_once():
    found = report_of(Verdict.OK).to_dict()
    assert found["stores"][0]["keys_per_s"] == 2.0
    assert (found["stores"][0]["bytes_per_s"], found["guarantee"], found["verdict"]) == (40.0, "exactly_once", "ok")
    assert "twice" not in found["claim"]
    assert "twice" in report_of(Verdict.OK, guarantee=Guarantee.AT_LEAST_ONCE).to_dict()["claim"]
    finding = report_of(Verdict.OK).findings[0]
    assert (finding.subject, finding.evidence["records_per_s"]) == ("0_1/counts by whole changelog", 5.0)
