"""What a drill's comparison comes to: each rule at its boundary, without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.checks.verdict import Verdict
from tidemark.drill.age import drill_age
from tidemark.drill.differ import EXAMPLES, Bounds, Kind, compare
from tidemark.drill.judging import Keeping, bounds_of, judge
from tidemark.drill.rebuild import Built, SavedState
from tidemark.drill.report import DrillReport, StoreDrill, Way
from tidemark.drill.weighing import distance
from tidemark.names import TaskId, TopicPartition
from tidemark.start.evidence import SourceOfState, StateCopy
from tidemark.start.witnesses import TaskFacts
from tidemark.stores.marker import Marker
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.topology.plan import Guarantee, StoreKind, StoreSpec

HOUR, DAY = 3_600_000, 86_400_000
NOW = 1_700_000_000_000
SEGMENT = 60_000
WINDOWS = StoreSpec("counts", StoreKind.WINDOW, 6 * HOUR, SEGMENT)
MARKER = Marker("app", "1", "counts", "3:n=count<i8", 5, NOW, {"in": 50}, NOW, 40)
TASK = TaskId(0, 1)
STATE = SavedState("s1", TASK, WINDOWS, StateCopy(SourceOfState.SAVEPOINT, MARKER, "s1/0_1.json"), NOW)
NOTHING_EXPIRES = Bounds(None, None)


def store_of(contents):
    """From `{segment: {key: value}}`."""
    store = MemoryStore()
    writes = [Writes(segment, list(held), list(held.values())) for segment, held in contents.items()]
    store.put_many(writes, MARKER, None)
    return store


SAVED = {1: {b"a": b"1", b"b": b"2"}, 2: {b"a": b"3"}}


@pytest.mark.parametrize(
    ("rebuilt", "expected"),
    [
        (SAVED, []),
        ({1: {b"a": b"1", b"b": b"9"}, 2: {b"a": b"3"}}, [(Kind.ALTERED, 1, b"b", b"2", b"9")]),
        ({1: {b"a": b"1"}, 2: {b"a": b"3"}}, [(Kind.MISSING, 1, b"b", b"2", None)]),
        ({1: {b"a": b"1", b"b": b"2"}}, [(Kind.MISSING, 2, b"a", b"3", None)]),
        ({**SAVED, 3: {b"c": b""}}, [(Kind.EXTRA, 3, b"c", None, b"")]),
        ({1: {b"a": b"1", b"b": b"2"}, 3: {b"a": b"3"}},
         [(Kind.MISSING, 2, b"a", b"3", None), (Kind.EXTRA, 3, b"a", None, b"3")]),
    ],
)  # fmt: skip
def test_should_tell_altered_missing_and_extra_keys_apart(rebuilt, expected):
    found = compare(store_of(SAVED), store_of(rebuilt), NOTHING_EXPIRES)
    assert [(d.kind, d.segment, d.key, d.saved, d.rebuilt) for d in found.first] == expected
    assert found.different == len(expected)
    assert found.keys == sum(len(held) for held in rebuilt.values())
    assert found.size_bytes == sum(len(k) + len(v) for held in rebuilt.values() for k, v in held.items())


def test_should_count_all_and_name_the_first_of_each_kind():
    saved = {1: {b"%03d" % n: b"1" for n in range(100)}}
    rebuilt = {1: {b"%03d" % n: b"2" for n in range(50)}}
    found = compare(store_of(saved), store_of(rebuilt), NOTHING_EXPIRES)
    assert (found.altered, found.missing) == (50, 50)
    assert [d.key for d in found.first] == [b"%03d" % n for n in (*range(EXAMPLES), *range(50, 50 + EXAMPLES))]


@pytest.mark.parametrize(("first_live", "different"), [(1, 2), (2, 1), (3, 0)])
def test_should_not_compare_what_has_expired(first_live, different):
    rebuilt = {1: {b"a": b"1", b"x": b"2", b"b": b"2"}, 2: {b"a": b"0"}}
    assert compare(store_of(SAVED), store_of(rebuilt), Bounds(first_live, None)).different == different


@pytest.mark.parametrize(("first_kept", "missing", "perhaps"), [(None, 3, 0), (1, 3, 0), (2, 1, 2), (3, 0, 3)])
def test_should_leave_out_and_count_only_missing_windows_that_the_broker_may_have_deleted(first_kept, missing, perhaps):
    found = compare(store_of(SAVED), store_of({0: {b"z": b"1"}}), Bounds(None, first_kept))
    assert (found.missing, len(found.perhaps_deleted), found.extra) == (missing, perhaps, 1)


def test_should_call_missing_what_a_record_deletes():
    found = compare(store_of(SAVED), store_of({}), Bounds(None, 3)).with_deletions({b"b"})
    assert (found.missing, len(found.perhaps_deleted)) == (1, 2)
    assert [(d.kind, d.key) for d in found.first] == [(Kind.MISSING, b"b")]


def test_should_look_for_deleted_windows_only_where_the_broker_deletes_and_has_deleted():
    keeping = Keeping("t", 1, 7 * HOUR)
    assert bounds_of(WINDOWS, NOW, Keeping("t", 1, None), 5, HOUR, NOW).first_kept is None
    assert bounds_of(WINDOWS, NOW, keeping, 0, HOUR, NOW).first_kept is None
    first_kept = bounds_of(WINDOWS, NOW, keeping, 5, HOUR, NOW).first_kept
    # The last window whose last record can be older than the retention begins one hour ahead of that.
    assert first_kept == (NOW - 7 * HOUR + HOUR) // SEGMENT + 1
    assert bounds_of(WINDOWS, NOW, keeping, 5, HOUR, NOW).first_live == (NOW - 6 * HOUR) // SEGMENT


@pytest.mark.parametrize(
    ("config", "retention_ms"),
    [
        ({"cleanup.policy": "compact", "retention.ms": "5"}, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, 5),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, None),
    ],
)
def test_should_read_what_a_topic_keeps(config, retention_ms):
    found = Keeping.of("t", {**config, "min.compaction.lag.ms": "7"})
    assert (found.retention_ms, found.min_compaction_lag_ms) == (retention_ms, 7)


def built(after_ms=0, fault=None):
    return Built(0, 40, 40, 0.5, NOW + after_ms, fault)


def verdict_of(one, rebuilt):
    found = compare(store_of(SAVED), store_of(rebuilt), NOTHING_EXPIRES)
    return judge(STATE, Way.CHANGELOG, one, found, ["altered b"] * found.altered, Keeping("t", 600_000, None))


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


def test_should_name_what_differs_and_fail_what_cannot_be_rebuilt():
    differs = verdict_of(built(), {1: {b"a": b"1", b"b": b"9"}, 2: {b"a": b"3"}})
    assert "1 keys differ from savepoint s1 (1 altered, 0 missing, 0 extra): altered b" in differs.message
    broken = judge(STATE, Way.CHANGELOG, built(fault="too short"), None, (), Keeping("t", 600_000, None))
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
    ],
)
def test_should_alert_when_the_last_passing_drill_is_too_old(passed_ms, verdict):
    found = drill_age(passed_ms, 7 * DAY, NOW)
    assert found.verdict is verdict
    assert ("restore_drill" in found.message) == (verdict is Verdict.FAILED)


def test_should_say_how_far_the_application_is_ahead_in_offsets_and_seconds():
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
    store = StoreDrill("0_1", "counts", Way.CHANGELOG, "s1", verdict, "told", records=10, keys=4, bytes=80, seconds=2.0)
    return DrillReport("d1", "app", "1", guarantee, NOW, NOW + 5, ("s1",), (store,), (), followed, 3, ())


@pytest.mark.parametrize(
    ("verdict", "followed", "whole"),
    [
        (Verdict.OK, 3, Verdict.OK),
        (Verdict.OK, 2, Verdict.NOT_ENOUGH_EVIDENCE),
        (Verdict.FAILED, 2, Verdict.FAILED),
    ],
)
def test_should_come_to_the_worst_of_stores_and_following(verdict, followed, whole):
    assert report_of(verdict, followed).verdict is whole


@pytest.mark.parametrize(
    ("left_out", "said"),
    [((), "any store of it: there is"), (("n: in memory",), "any store of it (n: in memory): there")],
)
def test_should_say_that_there_was_nothing_to_rebuild(left_out, said):
    report = replace(report_of(Verdict.OK, followed=0), stores=(), not_compared=left_out)
    (finding,) = report.findings
    assert (report.verdict, finding.subject) == (Verdict.NOT_ENOUGH_EVIDENCE, "app")
    assert said in finding.message


def test_should_tell_rates_and_the_weaker_claim_of_at_least_once():
    found = report_of(Verdict.OK).to_dict()
    assert found["stores"][0]["keys_per_s"] == 2.0
    assert (found["stores"][0]["bytes_per_s"], found["guarantee"], found["verdict"]) == (40.0, "exactly_once", "ok")
    assert "twice" not in found["claim"]
    assert "twice" in report_of(Verdict.OK, guarantee=Guarantee.AT_LEAST_ONCE).to_dict()["claim"]
    finding = report_of(Verdict.OK).findings[0]
    assert (finding.subject, finding.evidence["records_per_s"]) == ("0_1/counts by whole changelog", 5.0)
