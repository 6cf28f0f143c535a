"""A topology that declares another guarantee than the one under which an instance has crashed."""

from __future__ import annotations

import pytest
from tests.support.changes import ChangingApp, version
from tests.support.counting import Crash, committed, crash_at

from tidemark.topology.plan import Guarantee

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def under(app, guarantee):
    app.become(version(app.name, "1", "n", guarantee.value, n="count(*)"))


@pytest.mark.parametrize("after", Guarantee)
def test_should_process_again_what_a_crash_under_at_least_once_left_open(settings, admin, unique, after):
    app = ChangingApp(settings, admin, unique("guaranteed"))
    under(app, Guarantee.AT_LEAST_ONCE)
    app.feed(200)
    app.run()
    before = committed(app)
    app.feed(100)
    with pytest.raises(Crash):
        app.run(crash_at("4-commit-records"))
    records = app.last_records()
    ahead = [records[task].end_offsets[f"{app.name}-in"] for task in sorted(records)]
    assert committed(app) == before != ahead, "the commit records are durable, and the offsets are not committed"
    app.leave_group()
    under(app, after)
    app.run()
    assert committed(app) == ahead
    counts = app.counts()
    assert all(counts[key] >= n for key, n in app.expected.items()), "at least once"
    app.feed(100)
    app.run()
    assert sum(app.counts().values()) == sum(counts.values()) + 100
