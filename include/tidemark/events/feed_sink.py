"""Gives events to those who follow this process over HTTP."""

from __future__ import annotations

from tidemark.events.event import Event
from tidemark.queries.event_feed import EventFeed


class FeedSink:
    """An `EventSink` that keeps the last events in the memory of the process."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def publish(self, event: Event) -> None:
        self._feed.add(event.kind, event.to_json())

    def close(self, timeout_s: float) -> None: ...
