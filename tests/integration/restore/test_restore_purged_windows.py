"""A window changelog that was shortened by hand before its retention: the commit records show it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import purging
from tests.support.standby import count, in_window

from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.errors import StartRefused
from tidemark.names import TaskId, commits_topic
from tidemark.operations.context import OperationContext
from tidemark.recovery.start_plan import Refuse, Resume, plan_start
from tidemark.stream_times import StreamTimes

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
TASK = TaskId(0, 0)


@pytest.fixture
def cut(windowed):
    """Three batches of two windows each, committed long ago, within the retention, and now; the offset of each."""
    now = wall_clock_ms()
    place = windowed.changelog("w")
    (spec,) = windowed.plan.stores
    retention_ms = spec.retention_ms + DAY
    begins = []
    for number, at_ms in enumerate((now - retention_ms - HOUR, now - retention_ms + DAY // 2 + HOUR, now)):
        before = windowed.ends.of([place])[place]
        begins.append(before)
        start = at_ms // MINUTE * MINUTE
        windowed.write_at([(in_window(key, start), count(1)) for key in (b"a", b"b")], place, now)
        record = CommitRecord(
            kind=CommitKind.BATCH, application_id=windowed.id, topology_version="1", task=TASK, instance=0,
            batch=number + 1, commit_time_ms=at_ms, sources={windowed.source: {0: (0, 0)}},
            stream_times=StreamTimes(at_ms, {"w": at_ms}), rows=2, late_rows=0, bad_rows=0, filtered_rows=0, sinks={},
            changelogs={place.topic: 2}, ends_before={place.topic: {0: before}},
        )  # fmt: skip
        commits = replace(place, topic=commits_topic(windowed.id))
        windowed.write_at([(str(TASK).encode(), record.to_bytes())], commits, at_ms)
    return windowed, place, begins


def planned(app):
    context = OperationContext.exactly(app.plan, app.settings, [], wall_clock_ms, None)
    return plan_start(context.evidence.witnesses.evidence(context.evidence.facts()[TASK], {}))


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_should_restore_a_changelog_shortened_by_retention_but_not_one_shortened_by_hand(cut, over):
    app, place, begins = cut
    purging.purge(app.admin, app.settings, {place: begins[1] + over})
    plan = planned(app)
    if over <= 0:
        assert isinstance(plan, Resume)
        return
    assert isinstance(plan, Refuse)
    assert f"begins at offset {begins[1] + 1}, but the records from offset {begins[1]} on are too young" in plan.reason
    assert "tidemark repair run NAME" in plan.remedy


def test_should_not_plan_a_restore_from_a_changelog_that_was_shortened_by_hand(cut):
    app, place, begins = cut
    purging.purge(app.admin, app.settings, {place: begins[2]})
    context = OperationContext.exactly(app.plan, app.settings, [], wall_clock_ms, None)
    with pytest.raises(StartRefused, match=r"too young for retention\.ms to have deleted them"):
        context.evidence.candidates(context.evidence.read()[TASK], None)
