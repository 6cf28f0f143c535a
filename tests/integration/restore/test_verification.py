"""The verification against a changelog whose first records were deleted, on a real broker."""

from __future__ import annotations

import pytest
from tests.support import purging
from tests.support.standby import count, in_window

from tidemark.clock import wall_clock_ms
from tidemark.names import TaskId
from tidemark.operations.context import OperationContext
from tidemark.recovery.evidence import CommittedProgress
from tidemark.restore.task_opener import restore_job
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stream_times import StreamTimes
from tidemark.tasks.values import segments_of
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

MINUTE, HOUR = 60_000, 3_600_000
TASK = TaskId(0, 0)


def purge(app, place, offset):
    purging.purge(app.admin, app.settings, {place: offset})


def verified(app, held, stream_time_ms=0, folder=None):
    """Of a store that holds this, at this stream time, against its changelog as it is."""
    context = OperationContext.of(app.plan, app.settings, [], wall_clock_ms)
    (spec,) = context.plan.stores
    committed = CommittedProgress({app.source: 0}, 1, StreamTimes(stream_time_ms, {spec.name: stream_time_ms}))
    job = restore_job(context.plan, context.evidence.facts()[TASK], spec, committed, wall_clock_ms())
    store = RocksStore(folder, write_buffer_bytes=1 << 20)
    segments = segments_of(spec, list(held)).tolist()
    store.put_many(
        [Writes(at, [key], [value]) for at, (key, value) in zip(segments, held.items(), strict=True)], job.target, None
    )
    store.close()
    return context.rebuilder.verify(TASK, job, folder, lambda: True)


def test_should_compare_every_key_of_a_whole_changelog(counting, tmp_path):
    counting.commit({"n": {0: [(b"a", count(1)), (b"b", count(2)), (b"c", None)], 1: []}})
    found = verified(counting, {b"a": count(1), b"b": count(2)}, folder=tmp_path / "n")
    assert (found.compared, found.left_out, found.different, found.keys) == (2, 0, 0, 2)
    assert found.figures.verdict is Verdict.OK
    extra = verified(counting, {b"a": count(1), b"b": count(2), b"c": count(3)}, folder=tmp_path / "more")
    assert (extra.compared, extra.different) == (3, 1)
    assert extra.summary.endswith("in 1 keys")
    assert extra.differences.startswith("63: changelog None, store ")


def test_should_prove_nothing_after_a_purge(counting, tmp_path):
    place = counting.changelog("n")
    counting.commit({"n": {0: [(b"a", count(1)), (b"b", count(2))]}})
    purge(counting, place, counting.ends.of([place])[place])
    found = verified(counting, {b"a": count(1), b"b": count(666)}, folder=tmp_path / "n")
    assert (found.compared, found.left_out, found.deleted, found.different) == (0, 2, 2, 0)
    assert (found.figures.verdict, found.is_proven) == (Verdict.NOT_ENOUGH_EVIDENCE, False)
    assert "0 keys compared, 2 left out, 0 differ" in found.summary


def test_should_compare_what_was_written_since_a_purge_and_report_what_was_left_out(counting, tmp_path):
    place = counting.changelog("n")
    counting.commit({"n": {0: [(b"a", count(1)), (b"b", count(2))]}})
    purge(counting, place, counting.ends.of([place])[place])
    counting.commit({"n": {0: [(b"b", count(3)), (b"gone", None)]}})
    found = verified(counting, {b"a": count(1), b"b": count(3)}, folder=tmp_path / "n")
    assert (found.compared, found.left_out, found.different) == (1, 1, 0)
    assert found.figures.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    wrong = verified(counting, {b"a": count(1), b"b": count(2), b"gone": count(1)}, folder=tmp_path / "wrong")
    assert (wrong.compared, wrong.different, wrong.figures.verdict) == (2, 2, Verdict.FAILED)


def test_should_report_for_an_empty_store_whether_its_changelog_was_whole(counting, tmp_path):
    place = counting.changelog("n")
    counting.commit({"n": {0: [(b"a", None)]}})
    assert verified(counting, {}, folder=tmp_path / "n").figures.verdict is Verdict.OK
    purge(counting, place, counting.ends.of([place])[place])
    assert verified(counting, {}, folder=tmp_path / "purged").figures.verdict is Verdict.NOT_ENOUGH_EVIDENCE


def test_should_compare_live_windows_that_are_newer_than_what_is_left_of_a_changelog(windowed, tmp_path):
    """Changelog records carry the time at which they were written, here two hours ago."""
    place, now = windowed.changelog("w"), wall_clock_ms() // MINUTE * MINUTE
    windowed.settings = windowed.settings.model_copy(update={"max_timestamp_ahead_ms": HOUR})
    held = {in_window(b"a", now - age): count(1) for age in (30 * MINUTE, 5 * MINUTE, 4 * MINUTE)}
    expired, lacking, there = held
    windowed.write_at([(b"purged", b""), (there, held[there])], place, now - 2 * HOUR)
    purge(windowed, place, 1)
    found = verified(windowed, held, now, tmp_path / "w")
    assert (found.compared, found.left_out, found.deleted) == (2, 1, 0)
    assert (found.different, found.figures.verdict) == (1, Verdict.FAILED)
    assert found.examples[0].key == lacking.hex()
    # The same window, where what is left was written within the hour: it may have been before that.
    windowed.write_at([(there, held[there])], place, now)
    purge(windowed, place, 2)
    found = verified(windowed, held, now, tmp_path / "again")
    assert (found.compared, found.left_out, found.deleted, found.different) == (1, 2, 1, 0)
    assert found.figures.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert expired in held
