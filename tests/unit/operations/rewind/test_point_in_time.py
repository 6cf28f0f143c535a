"""The state that a time selects, and when it cannot be known: a table with each boundary at -1, 0 and +1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.errors import StartRefused
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.rewind.point_in_time import Neighbours, neighbours, point_in_time_of
from tidemark.operations.rewind.store_diff import LiveStore, changes
from tidemark.operations.times import format_time, parse_time
from tidemark.recovery.evidence import (
    KeptDeletions,
    SourceEvidence,
    StateCopy,
    StoreEvidence,
    TaskEvidence,
    Watermarks,
)
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes

TASK = TaskId(0, 2)
CHANGELOG = TopicPartition("app-counts-changelog", 2)
SOURCE = TopicPartition("in", 2)
LAYOUT = "3:n=count<i8"
NOW = 1_700_000_000_000
MINUTE, HOUR = 60_000, 3_600_000
LAG_MS = 10 * MINUTE


def a_record(batch: int, at_ms: int, changelog_end: int = 0, **changed: object) -> CommitRecord:
    """Batch n ends at source offset 10 n; `changelog_end` is the changelog's end before it."""
    record = CommitRecord(
        kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TASK, instance=0, batch=batch,
        commit_time_ms=at_ms, sources={"in": {2: (10 * batch - 10, 10 * batch)}},
        stream_times=StreamTimes(at_ms - 5, {"counts": at_ms - 5}), rows=10, late_rows=0, bad_rows=0, filtered_rows=0,
        sinks={}, changelogs={},
        ends_before={CHANGELOG.topic: {2: changelog_end}},
    )  # fmt: skip
    return replace(record, **changed)


def a_copy(batch: int, changelog_offset: int, age_ms: int = 0, kind=SourceOfState.SAVEPOINT) -> StateCopy:
    checkpoint = StoreCheckpoint(
        "app", "1", "counts", LAYOUT, batch, NOW - age_ms, {"in": 10 * batch}, NOW, changelog_offset
    )
    return StateCopy(kind, checkpoint, f"savepoint-{batch}")


def found(copies=(), low=0, end=100, store_retention_ms=None, changelog_retention_ms=None, now_ms=NOW) -> TaskEvidence:
    store = StoreEvidence(
        store="counts", value_layout=LAYOUT, copies=tuple(copies), changelog=CHANGELOG,
        changelog_watermarks=Watermarks(low, end), kept_deletions=KeptDeletions(24 * HOUR),
        store_retention_ms=store_retention_ms, changelog_retention_ms=changelog_retention_ms,
    )  # fmt: skip
    return TaskEvidence(
        application_id="app", task=TASK, sources=(SourceEvidence(SOURCE, 90, Watermarks(0, 500), 0),),
        committed_metadata=None, last_record=a_record(9, NOW), stores=(store,), now_ms=now_ms,
    )  # fmt: skip


THEN = a_record(5, NOW - 5 * MINUTE, 40)
NEXT = a_record(6, NOW - 4 * MINUTE, 50)


def moment(evidence=None, record=THEN, successor=NEXT, version="1"):
    around = Neighbours(record, successor, NOW - HOUR)
    given = evidence or found()
    return point_in_time_of(given, around, {"counts": given.now_ms - LAG_MS}, version, NOW - 5 * MINUTE)


def candidate(evidence=None, **changed):
    return moment(evidence, **changed).stores["counts"].candidate


# --- the record


@pytest.mark.parametrize(("over", "batch", "following"), [(-1, 4, 5), (0, 5, 6), (1, 5, 6)])
def test_should_select_the_last_commit_at_or_before_the_time(over, batch, following):
    records = [a_record(number, NOW - (10 - number) * MINUTE) for number in range(3, 8)]
    chosen = neighbours(records, NOW - 5 * MINUTE + over)[TASK]
    assert (chosen.record.batch, chosen.successor.batch) == (batch, following)


def test_should_find_no_successor_of_the_last_commit_and_none_before_the_first():
    records = [a_record(3, NOW - 2), a_record(4, NOW)]
    assert neighbours(records, NOW)[TASK].successor is None
    assert neighbours(records, NOW - 3)[TASK] == Neighbours(None, None, NOW - 2)


def test_should_take_the_later_commit_where_a_clock_was_set_back():
    records = [a_record(3, 1000), a_record(4, 3000), a_record(5, 2000), a_record(6, 4000)]
    chosen = neighbours(records, 2500)[TASK]
    assert (chosen.record.batch, chosen.successor.batch) == (5, 6)


@pytest.mark.parametrize("kind", [CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR])
def test_should_not_go_back_beyond_a_change_that_wrote_new_changelogs(kind):
    records = [THEN, NEXT, replace(a_record(7, NOW - 3 * MINUTE, 60), kind=kind), a_record(8, NOW - MINUTE, 70)]
    before = neighbours(records, NOW - 5 * MINUTE)[TASK]
    with pytest.raises(StartRefused, match=f"a {kind} has written the state to other changelogs"):
        point_in_time_of(found(), before, {"counts": NOW - LAG_MS}, "1", NOW - 5 * MINUTE)
    assert neighbours(records, NOW - 3 * MINUTE)[TASK].changed is None
    assert neighbours([*records[:3], a_record(8, NOW - 6 * MINUTE)], NOW - 5 * MINUTE)[TASK].changed is None


def test_should_judge_each_task_separately():
    other = a_record(7, NOW, task=TaskId(1, 2))
    chosen = neighbours([a_record(3, NOW - 1), other, a_record(4, NOW)], NOW - 1)
    assert (chosen[TASK].record.batch, chosen[TASK].successor.batch) == (3, 4)
    assert chosen[TaskId(1, 2)].record is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"record": None, "successor": None},
            r"no commit record is as old as 2023-11-14T22:08:20.000Z \(the oldest is of",
        ),
        ({"successor": replace(NEXT, batch=7)}, "between batch 5 and 7 are compacted"),
        ({"version": "2"}, "version 1 of the topology ran"),
        ({"successor": replace(NEXT, ends_before={})}, "the store did not exist yet"),
        ({"evidence": found(end=49)}, "the topic was created again"),
        ({"evidence": found(low=51)}, "begins at 51, but ended at 50 at that time"),
        ({"evidence": found(low=50)}, "has lost its beginning"),
    ],
)
def test_should_refuse_in_one_line_with_a_remedy(changed, reason):
    with pytest.raises(StartRefused, match=reason) as refused:
        moment(**changed)
    assert "\n" not in str(refused.value)
    assert "give a later time" in str(refused.value) or "use the topology of that version" in str(refused.value)


def test_should_refuse_a_task_that_has_never_committed():
    with pytest.raises(StartRefused, match="it has never committed"):
        point_in_time_of(found(), None, {"counts": NOW - LAG_MS}, "1", NOW)


# --- the bound


def test_should_read_the_changelog_to_its_end_before_the_next_commit():
    assert (candidate().from_offset, candidate().end_offset, candidate().copy) == (0, 50, None)
    assert moment().committed.next_offsets == {"in": 50}
    assert moment().committed.stream_times == THEN.stream_times


def test_should_read_the_changelog_to_its_end_when_no_commit_followed():
    assert candidate(successor=None).end_offset == 100


def test_should_leave_out_a_source_topic_that_is_its_own_changelog():
    evidence = found()
    of_users = replace(evidence.stores[0], store="table", is_source=True)
    assert list(moment(replace(evidence, stores=(*evidence.stores, of_users))).stores) == ["counts"]


# --- what compaction may have taken


@pytest.mark.parametrize(("over", "is_known"), [(-1, False), (0, False), (1, True)])
def test_should_require_that_nothing_superseded_is_as_old_as_the_compaction_lag(over, is_known):
    following = replace(NEXT, commit_time_ms=NOW - LAG_MS + over)
    if is_known:
        assert moment(successor=following).stores["counts"].is_provable
    else:
        with pytest.raises(StartRefused, match=r"superseded since .* may be compacted away"):
            moment(successor=following)


def test_should_accept_a_state_of_any_age_when_no_commit_followed():
    old = replace(THEN, commit_time_ms=NOW - 1000 * HOUR)
    assert moment(record=old, successor=None).stores["counts"].is_provable


@pytest.mark.parametrize(("batch", "is_known"), [(4, False), (5, True), (6, False)])
def test_should_require_a_copy_of_exactly_that_batch_beyond_the_compaction_lag(batch, is_known):
    following = replace(NEXT, commit_time_ms=NOW - LAG_MS)
    evidence = found(copies=[a_copy(batch, 50 if batch > 5 else 45)])
    if is_known:
        chosen = moment(evidence, successor=following).stores["counts"]
        assert chosen.candidate.is_ready
        assert not chosen.is_provable
    else:
        with pytest.raises(StartRefused, match="no savepoint is exactly at batch 5"):
            moment(evidence, successor=following)


# --- copies


@pytest.mark.parametrize(("offset", "is_used"), [(49, True), (50, True), (51, False)])
def test_should_use_no_copy_beyond_the_bound(offset, is_used):
    assert (candidate(found(copies=[a_copy(4, offset)])).copy is not None) == is_used


@pytest.mark.parametrize(("batch", "is_used"), [(4, True), (5, True), (6, False)])
def test_should_use_no_copy_of_a_later_batch(batch, is_used):
    """After a rewind a later batch may have a lower source offset."""
    copy = a_copy(batch, 45)
    copy = replace(copy, checkpoint=replace(copy.checkpoint, source_offsets={"in": 40}))
    assert (candidate(found(copies=[copy])).copy is not None) == is_used


@pytest.mark.parametrize(("age_ms", "is_used"), [(24 * HOUR - 1, True), (24 * HOUR, False)])
def test_should_replay_no_tail_on_a_copy_as_old_as_delete_retention(age_ms, is_used):
    assert (candidate(found(copies=[a_copy(4, 45, age_ms)])).copy is not None) == is_used


@pytest.mark.parametrize(("low", "is_used"), [(45, True), (46, False)])
def test_should_replay_no_tail_whose_beginning_is_gone(low, is_used):
    evidence = found(copies=[a_copy(4, 45)], low=low)
    if is_used:
        assert candidate(evidence).from_offset == 45
    else:
        with pytest.raises(StartRefused, match="older than the beginning"):
            candidate(evidence)


@pytest.mark.parametrize(("over", "is_known"), [(-1, False), (0, False), (1, True)])
def test_should_require_every_window_that_was_live_then_when_the_broker_deletes(over, is_known):
    """By the wall clock, the oldest live window must be younger than the changelog's retention."""
    record = replace(THEN, stream_times=StreamTimes(NOW, {"counts": NOW - 30 * HOUR + 6 * HOUR + over}))
    evidence = found(low=10, store_retention_ms=6 * HOUR, changelog_retention_ms=30 * HOUR)
    if is_known:
        assert candidate(evidence, record=record).from_offset == 10
    else:
        with pytest.raises(StartRefused, match="has lost its beginning"):
            candidate(evidence, record=record)


# --- whether what was built is still what is meant


def test_should_accept_what_was_built_unless_a_later_batch_was_below_the_chosen_end():
    built = moment(successor=None)
    assert built.is_still(moment(successor=None, evidence=found(end=120)))
    for end, stands in ((99, False), (100, True), (101, True)):
        following = a_record(6, NOW - 4 * MINUTE, end)
        assert built.is_still(moment(evidence=found(end=120), successor=following)) == stands
    assert not built.is_still(moment(record=NEXT, successor=None))


# --- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-10m", NOW - 10 * MINUTE),
        ("1699999999999", NOW - 1),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-15 00:13:19.500+02:00", NOW - 500),
        ("2023-11-14", NOW - NOW % (24 * HOUR)),
    ],
)
def test_should_parse_a_time_as_people_write_it(text, expected):
    assert parse_time(text, NOW) == expected
    assert parse_time(format_time(expected), NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-10", "-10y", "12:00", "1700000000001", "2023-11-14T22:13:21Z"])
def test_should_refuse_an_invalid_or_future_time(text):
    with pytest.raises(ValueError, match=r"is not a time|in the future"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["9" * 15, "9" * 23, "9" * 5000, f"-{'9' * 12}d", f"-{'9' * 400}d"])
def test_should_refuse_a_time_that_is_too_large(text):
    with pytest.raises(ValueError, match="is not a time: write"):
        parse_time(text, NOW)


# --- the difference


def a_store(segments: dict[int, dict[bytes, bytes]]) -> MemoryStore:
    store, checkpoint = MemoryStore(), a_copy(1, 0).checkpoint
    store.put_many([Writes(s, list(held), list(held.values())) for s, held in segments.items()], checkpoint, None)
    return store


def difference(then, now, live=None):
    return list(changes(a_store(then), a_store(now), live or LiveStore(None, None)))


def test_should_write_what_differs_and_delete_later_keys():
    then = {0: {b"a": b"1", b"b": b"1", b"d": b"1", b"z": b"1"}}
    now = {0: {b"b": b"2", b"c": b"1", b"d": b"1", b"e": b"1"}}
    assert difference(then, now) == [(b"a", b"1"), (b"b", b"1"), (b"c", None), (b"e", None), (b"z", b"1")]
    assert difference({}, {0: {b"a": b"1"}}) == [(b"a", None)]
    assert difference({0: {b"a": b"1"}}, {}) == [(b"a", b"1")]
    assert difference(now, now) == []


def test_should_go_through_all_segments_of_both():
    assert difference({1: {b"a": b"1"}, 3: {b"c": b"1"}}, {2: {b"b": b"1"}, 3: {b"c": b"2"}}) == [
        (b"a", b"1"), (b"b", None), (b"c", b"1"),
    ]  # fmt: skip


def test_should_ignore_expired_windows_and_write_those_that_are_live_again():
    then = {4: {b"d": b"1"}, 5: {b"e": b"1", b"f": b"1"}, 6: {b"g": b"1"}}
    now = {4: {b"x": b"1"}, 5: {b"e": b"1", b"y": b"1"}, 6: {b"g": b"1"}}
    # Expired then: before 5. Expired now: before 6.
    assert difference(then, now, LiveStore(5, 6)) == [(b"e", b"1"), (b"f", b"1"), (b"y", None)]
