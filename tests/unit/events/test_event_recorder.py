"""From the calls of listeners to events in the sinks that keep them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from tests.support.events import CHANGELOG, progress

from tidemark.events.event import EventKind, Rebalance
from tidemark.events.recorder import EventRecorder
from tidemark.names import TopicPartition
from tidemark.supervision.state import InstanceState

OTHER = TopicPartition("app-n-changelog", 4)


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events = []

    def publish(self, event):
        self.events.append(event)

    def close(self, timeout_s): ...


def recorder(*sinks):
    ticks = count(100)
    return EventRecorder("app", "2", 3, lambda: next(ticks), sinks)


def test_should_give_each_sink_the_same_events_with_origin_and_time():
    first, second = Kept(), Kept()
    summary = recorder(first, second)
    summary.on_change(InstanceState.REBALANCING, InstanceState.CREATED)
    summary.on_failure(RuntimeError())
    summary.on_rebalance(Rebalance((CHANGELOG,), (CHANGELOG,), (), 1))
    summary.on_restore_start(progress())
    summary.on_restore_end(progress(110))
    summary.on_restore_suspended(progress(60))
    assert first.events == second.events
    assert [(e.application_id, e.topology_version, e.instance) for e in first.events] == [("app", "2", 3)] * 6
    assert [e.time_ms for e in first.events] == [100, 101, 102, 103, 104, 105]
    assert [e.kind for e in first.events] == [
        EventKind.STATE,
        EventKind.FAILURE,
        EventKind.REBALANCE,
        EventKind.RESTORE_START,
        EventKind.RESTORE_END,
        EventKind.RESTORE_SUSPENDED,
    ]


def test_should_report_batches_at_most_once_per_second_and_store():
    kept = Kept()
    summary = recorder(kept)
    for changelog in (CHANGELOG, OTHER):
        summary.on_restore_start(progress(changelog=changelog))
        for elapsed_s in (0.4, 0.999, 1.0, 1.5, 1.999, 2.0):
            summary.on_batch_restored(progress(60, elapsed_s, changelog=changelog))
    batches = [e.body for e in kept.events if e.kind is EventKind.RESTORE_BATCH]
    assert [(b["partition"], b["elapsed_s"]) for b in batches] == [(3, 1.0), (3, 2.0), (4, 1.0), (4, 2.0)]


def test_should_report_batches_of_a_restarted_restore():
    kept = Kept()
    summary = recorder(kept)
    for elapsed_s in (5.0, 1.0):
        summary.on_restore_start(progress())
        summary.on_batch_restored(progress(60, elapsed_s))
    assert [e.body["elapsed_s"] for e in kept.events if e.kind is EventKind.RESTORE_BATCH] == [5.0, 1.0]


def test_should_keep_the_order_of_time_when_several_stores_are_restored_at_once():
    kept, ticks = Kept(), count()

    def slow_clock():
        now = next(ticks)
        # Here another thread would get ahead.
        time.sleep(0.001)
        return now

    summary = EventRecorder("app", "2", 3, slow_clock, (kept,))
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            pool.submit(summary.on_restore_end, progress(110))
    assert [event.time_ms for event in kept.events] == list(range(100))
