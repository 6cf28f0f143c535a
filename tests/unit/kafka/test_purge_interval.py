"""When a repartition topic is purged."""

from __future__ import annotations

import time
from types import SimpleNamespace

from tidemark.kafka.purge import RepartitionPurge
from tidemark.names import TopicPartition


def test_should_purge_at_its_interval_also_when_the_clock_was_set_back(monkeypatch):
    asked, place = [], TopicPartition("app-r-repartition", 0)
    ticks_ms, wall_ms = [0], [2 * 3_600_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: ticks_ms[0] * 10**6)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ms[0] * 10**6)
    admin = SimpleNamespace(delete_records=lambda partitions, **_: asked.extend(partitions) or {})
    purge = RepartitionPurge(SimpleNamespace(repartition_topics={place.topic: 1}), admin, 1000)
    wall_ms[0] -= 3_600_000
    for ticks_ms[0] in (999, 1000):
        purge.run({place: 5})
        assert len(asked) == (ticks_ms[0] == 1000)
