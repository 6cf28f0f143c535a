"""The batches that an audit covers: pure functions of lists of commit records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.audit.ranges import (
    Base,
    Position,
    commit_rows,
    continues_from,
    ends_before,
    has_begun_again,
    next_range,
    passed_over,
)
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes

TASK = TaskId(0, 1)
DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS


def record(batch, kind=CommitKind.BATCH, *, at=None, out=None, version="1", commit_time_ms=NOW_MS):
    """Batch n reads [10n, 10n + 10), its outputs lie from 20n on, its stream time is 1000n."""
    start, end = at or (10 * batch, 10 * batch + 10)
    out = 20 * batch if out is None else out
    return CommitRecord(
        kind=kind, application_id="app", topology_version=version, task=TASK, instance=0, batch=batch,
        commit_time_ms=commit_time_ms, sources={"in": {1: (start, end)}},
        stream_times=StreamTimes(1000 * batch, {}), rows=10, late_rows=0, bad_rows=0, filtered_rows=0,
        sinks={"out": 5}, changelogs={"log": 5},
        ends_before={"out": {0: out, 1: out}, "log": {1: out}},
    )  # fmt: skip


def history(first, last, **options):
    return [record(number, **options) for number in range(first, last + 1)]


def offsets(until):
    return {"out": {0: until, 1: until}, "log": {1: until}}


def position(batch, version="1", commit_time_ms=NOW_MS):
    ends = {"in": 10 * batch + 10}
    return Position(TASK, version, batch, commit_time_ms, ends, StreamTimes(1000 * batch, {}), offsets(20 * batch + 20))


def ranged(records, before=None, *, readable=10_000, quiet=10_000, most=1000, version="1"):
    return next_range(
        TASK,
        records,
        before,
        version=version,
        readable=offsets(readable),
        quiet_ends=None if quiet is None else offsets(quiet),
        kept_since_ms=NOW_MS - DAY_MS,
        most_batches=most,
    )


def skipped(known, before=None, version="1"):
    return passed_over(TASK, known, before, version, NOW_MS - DAY_MS)


def batches(run):
    return [one.batch for one in run.records]


START = record(0, CommitKind.START, at=(10, 10), out=0)


def test_should_begin_from_an_empty_base_at_the_start_of_a_task():
    run = ranged([START, *history(1, 3)])
    assert batches(run) == [0, 1, 2, 3]
    assert run.base is Base.EMPTY
    assert run.until == offsets(10_000)


def test_should_continue_after_the_audited_batches_and_carry_their_results():
    run = ranged(history(1, 5), position(3))
    assert batches(run) == [4, 5]
    assert run.base is Base.CARRIED
    assert [at.task_ms for _, at in run.stream_times()] == [3000, 4000]


def test_should_find_no_range_when_everything_was_audited():
    assert ranged(history(1, 5), position(5)) is None
    assert ranged([]) is None


def test_should_begin_after_the_first_known_batch_when_the_past_is_unknown():
    run = ranged(history(7, 9))
    assert batches(run) == [8, 9]
    assert run.base is Base.CHANGELOG
    assert run.base_until["log"][1] == 160
    assert run.before is not None
    assert (run.before.batch, run.before.next_offsets, run.before.stream_times.task_ms) == (7, {"in": 80}, 7000)
    assert ranged(history(7, 7)) is None


def test_should_leave_the_newest_batch_for_later_while_records_are_being_written():
    run = ranged([START, *history(1, 3)], quiet=None)
    assert batches(run) == [0, 1, 2]
    assert run.until == offsets(60)


@pytest.mark.parametrize(("readable", "last"), [(59, 1), (60, 2), (61, 2)])
def test_should_end_before_an_open_transaction(readable, last):
    assert ranged([START, *history(1, 3)], readable=readable, quiet=None).records[-1].batch == last


def test_should_audit_a_limited_number_of_batches_and_the_rest_next_time():
    run = ranged([START, *history(1, 9)], most=4)
    assert batches(run) == [0, 1, 2, 3]
    assert run.until == offsets(80)
    assert run.end.batch == 3
    assert batches(ranged([START, *history(1, 9)], run.end, most=4)) == [4, 5, 6, 7]


def test_should_take_results_from_the_changelog_after_a_rewind_or_under_another_topology():
    rewind = record(4, CommitKind.REWIND, at=(40, 10))
    after = [record(5, at=(10, 30)), record(6, at=(30, 50))]
    known = [START, *history(1, 3), rewind, *after]
    assert batches(ranged(known)) == [0, 1, 2, 3]
    run = ranged(known, position(3))
    assert batches(run) == [4, 5, 6]
    assert run.base is Base.CHANGELOG
    assert run.base_until == record(5).ends_before
    assert [one.batch for one in run.computed] == [5, 6]
    assert ranged(history(4, 5, version="2"), position(3), version="2").base is Base.CHANGELOG


def test_should_accept_a_gap_only_when_compaction_may_have_made_it():
    old = [record(1, commit_time_ms=NOW_MS - 2 * DAY_MS), *history(5, 7)]
    assert batches(ranged(old)) == [6, 7]
    assert batches(ranged(history(5, 7), position(1, commit_time_ms=NOW_MS - 2 * DAY_MS))) == [6, 7]
    young = [START, record(1), *history(3, 4)]
    assert batches(ranged(young)) == [0, 1, 3, 4]
    assert batches(ranged(history(5, 7), position(3))) == [5, 6, 7]


def test_should_name_the_batches_before_a_gap_that_compaction_made():
    def numbers(known, before=None):
        return [(one.first_batch, one.last_batch) for one in skipped(known, before)]

    old_ms = NOW_MS - 2 * DAY_MS
    # The first record after a gap only shows where the next one begins.
    assert numbers([record(1, commit_time_ms=old_ms), *history(5, 7)]) == [(1, 5)]
    assert numbers([record(1, commit_time_ms=old_ms), *history(5, 5)]) == []
    assert numbers([START, *history(1, 2, commit_time_ms=old_ms), *history(4, 5, commit_time_ms=old_ms)]) == [(0, 4)]
    assert numbers(history(5, 7), position(1, commit_time_ms=old_ms)) == [(2, 5)]
    (gap,) = skipped(history(5, 7), position(1, commit_time_ms=old_ms))
    assert "commit_record_retention_ms" in gap.reason
    # Other gaps are in the range, where an expectation finds them.
    assert numbers([START, record(1), *history(3, 4)]) == []
    assert numbers([record(1), *history(3, 4)]) == []
    assert numbers(history(5, 7), position(3)) == []
    assert numbers(history(4, 7), position(3, commit_time_ms=old_ms)) == []
    # What an upgrade left out comes before.
    upgrade = record(3, CommitKind.UPGRADE, commit_time_ms=old_ms)
    later = [upgrade, record(4, commit_time_ms=old_ms), *history(8, 9)]
    assert numbers([*history(1, 2, commit_time_ms=old_ms), *later]) == [(1, 2)]


def test_should_report_where_the_previous_record_ended():
    rows = commit_rows(ranged([*history(4, 5), replace(record(7), sources={"in": {1: (58, 80)}})], position(3)))
    assert [(r["previous_end"], r["start_offset"]) for r in rows] == [(40, 40), (50, 50), (60, 58)]
    assert [(r["previous_batch"], r["batch"]) for r in rows] == [(3, 4), (4, 5), (5, 7)]
    first = commit_rows(ranged([START, *history(1, 1)]))[0]
    assert (first["previous_end"], first["previous_batch"]) == (None, None)


CHANGES = [CommitKind.UPGRADE, CommitKind.RESET, CommitKind.REPAIR]


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("begin", [39, 40, 41])
def test_should_compare_where_a_change_begins_with_where_the_task_had_ended(kind, begin):
    rows = commit_rows(ranged([record(4, kind, at=(begin, 40)), *history(5, 6)], position(3)))
    assert [(r["previous_end"], r["start_offset"]) for r in rows] == [(40, begin), (40, 50), (60, 60)]
    # A repeated upgrade or repair takes the number of the one before, and a reset may clear stream time.
    assert [r["previous_batch"] for r in rows] == [None, 4, 5]
    assert (rows[0]["previous_stream_time_ms"], rows[0]["previous_commit_ms"]) == (None, None)
    # Batches that the current plan cannot judge still say where the change must begin.
    earlier = history(4, 5) if kind is CommitKind.RESET else history(4, 5, version="0")
    after = commit_rows(ranged([*earlier, record(6, kind, at=(begin + 20, 60))], position(3)))
    assert [(r["previous_end"], r["start_offset"]) for r in after] == [(60, begin + 20)]


def test_should_compare_nothing_across_a_rescale():
    rows = commit_rows(ranged([record(4, CommitKind.RESCALE, at=(7, 7)), record(5, at=(7, 30))], position(3)))
    assert [(r["previous_end"], r["start_offset"]) for r in rows] == [(None, 7), (7, 7)]


def test_should_bound_the_outputs_of_a_batch_by_where_the_next_begins():
    run = ranged([START, *history(1, 2)], quiet=70)
    assert [(r.batch, start["out"][0], end["out"][0]) for r, start, end in run.spans()] == [
        (0, 0, 20),
        (1, 20, 40),
        (2, 40, 70),
    ]


def test_should_look_at_outputs_between_two_audits_that_no_record_counts():
    def between(records, before):
        return list(ranged(records, before).unclaimed())

    # The audit before ended at the topics' ends; by its next batch some of them had grown.
    grown = [replace(record(4), ends_before={"out": {0: 81, 1: 80}, "log": {1: 79}, "new": {0: 5}}), record(5, out=90)]
    assert between(grown, position(3)) == [("out", 0, 80, 81, 3)]
    assert between(history(4, 5), position(3)) == []
    assert between([START, *history(1, 3)], None) == []
    assert between(history(7, 9), None) == []
    # A rewind writes outside of batches, and of missing batches the outputs lie there.
    rewind = record(4, CommitKind.REWIND, at=(40, 10), out=99)
    assert between([rewind, record(5, at=(10, 30), out=120)], position(3)) == []
    assert between([record(5, out=120), record(6, out=140)], position(3)) == []
    # A topic that the application reads is judged as a source.
    read = replace(grown[0], sources={"in": {1: (40, 50)}, "out": {1: (0, 0)}})
    assert between([read, *grown[1:]], position(3)) == []


@pytest.mark.parametrize("kind", [CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR])
def test_should_begin_at_an_upgrade_rescale_or_reset_and_name_the_batches_before_it(kind):
    known = [START, *history(1, 3), record(4, kind, at=(40, 40)), *history(5, 6)]
    run = ranged(known)
    assert batches(run) == [4, 5, 6]
    assert run.base is Base.CHANGELOG
    assert [at.task_ms for _, at in run.stream_times()] == [3000, 4000, 5000]
    (left_out,) = skipped(known)
    assert (left_out.task, left_out.first_batch, left_out.last_batch) == (TASK, 0, 3)
    assert str(kind) in left_out.reason
    # What was audited before such a command is not told again.
    assert batches(ranged(known, position(3))) == [4, 5, 6]
    assert skipped(known, position(3)) == []
    assert skipped(known, position(2))[0].first_batch == 3


def test_should_not_judge_batches_of_another_topology_version():
    known = [START, *history(1, 3), *history(4, 6, version="2")]
    run = ranged(known, version="2")
    assert batches(run) == [4, 5, 6]
    assert run.base is Base.CHANGELOG
    assert (run.before.batch, run.before.next_offsets, run.before.stream_times.task_ms) == (3, {"in": 40}, 3000)
    (left_out,) = skipped(known, position(1), "2")
    assert (left_out.first_batch, left_out.last_batch) == (2, 3)
    assert "version 1 of the topology wrote them, and this is version 2" in left_out.reason
    # The module was changed, the application still runs the old one: nothing is audited, and nothing forgotten.
    assert ranged(known, position(3), version="1") is None
    assert skipped(known, position(3))[0].last_batch == 6
    # Back to the first version: its own old batches have the others' between them.
    back = [*known, *history(7, 8)]
    assert batches(ranged(back, position(3))) == [7, 8]
    assert ranged(back, position(3)).base is Base.CHANGELOG


@pytest.mark.parametrize("kind", [CommitKind.UPGRADE, CommitKind.REPAIR])
def test_should_cover_a_repeated_change_that_has_the_batch_of_the_audited_one(kind):
    first = record(4, kind, at=(40, 40))
    again = record(4, kind, at=(40, 40), out=85, commit_time_ms=NOW_MS + 1)
    known, later = [*history(1, 3), first, again], [record(5, at=(40, 60), out=90)]
    run = ranged([*known, *later], position(4))
    assert run.records == (again, *later)
    assert run.base is Base.CHANGELOG
    assert skipped([*known, *later], position(4)) == []
    # Compaction took the record of the first one.
    assert ranged([*history(1, 3), again, *later], position(4)).records == (again, *later)
    # The audit covered the second one, and the first one is still there.
    assert ranged(known, position(4, commit_time_ms=NOW_MS + 1)) is None
    assert ranged([*known, *later], position(4, commit_time_ms=NOW_MS + 1)).records == tuple(later)


def test_should_skip_no_batch_of_a_task_that_continued():
    known = [START, *history(1, 3), record(4, CommitKind.REWIND, at=(40, 10)), record(5, at=(10, 30))]
    assert skipped(known) == []
    assert skipped(known, position(5)) == []
    assert skipped([]) == []


def test_should_notice_that_a_task_began_again_under_the_same_name():
    later = NOW_MS + 5000
    anew = [replace(START, commit_time_ms=later), *history(1, 9, commit_time_ms=later)]
    for batch in (0, 3, 9, 20):
        assert has_begun_again(anew, position(batch))
    # Its own records, read again because an audit ended before the newest of them.
    assert not has_begun_again([START, *history(1, 9)], position(3))
    assert not has_begun_again([START, *history(1, 9)], position(9))
    # The clock was set back before batch 3: its record is there, so it is the same life.
    known = [START, *history(1, 2), *history(3, 9, commit_time_ms=NOW_MS - 9_000_000)]
    assert not has_begun_again(known, position(3, commit_time_ms=NOW_MS - 9_000_000))
    # Compaction took the position's record.
    assert not has_begun_again(history(8, 9, commit_time_ms=later), position(3))
    assert not has_begun_again([], position(3))


def test_should_reject_records_that_do_not_continue_from_a_position():
    assert continues_from([], position(3))
    assert continues_from(history(1, 3), position(3))
    assert continues_from(history(1, 5), position(3))
    assert continues_from(history(4, 5), position(3))
    assert not continues_from(history(5, 6), position(3))
    assert not continues_from(history(1, 2), position(3))
    assert not continues_from(history(1, 3, commit_time_ms=NOW_MS + 1), position(3))


@pytest.mark.parametrize(("last", "is_before"), [(4, True), (5, False), (6, False)])
def test_should_say_whether_a_range_ends_before_a_position(last, is_before):
    assert ends_before(ranged([START, *history(1, last)]), position(5)) is is_before


@pytest.mark.parametrize(("later_ms", "is_before"), [(0, True), (1, False)])
def test_should_not_end_before_a_position_from_before_a_new_start(later_ms, is_before):
    begun = ranged([replace(START, commit_time_ms=NOW_MS + later_ms), *history(1, 2, commit_time_ms=NOW_MS + later_ms)])
    assert ends_before(begun, position(5)) is is_before


@pytest.mark.parametrize("kind", [CommitKind.UPGRADE, CommitKind.BATCH])
def test_should_not_end_before_a_position_of_an_earlier_life_when_it_begins_with_another_version(kind):
    later_ms = NOW_MS + 5000
    begun = [
        replace(START, commit_time_ms=later_ms),
        *history(1, 9, commit_time_ms=later_ms),
        record(10, kind, version="2", commit_time_ms=later_ms),
        *history(11, 29, version="2", commit_time_ms=later_ms),
    ]
    assert has_begun_again(begun, position(500))
    assert not ends_before(ranged(begun, version="2"), position(500))
