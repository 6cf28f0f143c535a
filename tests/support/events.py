"""Made progress and events for the tests of this folder."""

from __future__ import annotations

from tidemark.events.event import Event, EventKind, state_body
from tidemark.names import TopicPartition
from tidemark.restore.listener import RestoreProgress
from tidemark.supervision.state import InstanceState

CHANGELOG = TopicPartition("app-n-changelog", 3)


def progress(next_offset=10, elapsed_s=0.0, records=0, changelog=CHANGELOG, end_offset=110) -> RestoreProgress:
    """Of a restore from offset 10 to 110."""
    return RestoreProgress("n", changelog, 10, next_offset, end_offset, records, elapsed_s)


def state_event(new: str, old: str = "CREATED", instance: int = 0, time_ms: int = 5, app: str = "app") -> Event:
    """A transition."""
    return Event(EventKind.STATE, app, "1", instance, time_ms, state_body(InstanceState(new), InstanceState(old)))
