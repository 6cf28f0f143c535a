"""The last events of this process, for those who follow them over HTTP."""

from __future__ import annotations

import json
import threading
from collections import deque
from itertools import islice

from tidemark.queries.server_events import KEEP_ALIVE, LOST, ServerEvent

_KEPT_EVENTS = 1000
_MOST_EVENTS = 100
_WAIT_S = 0.5


class EventFeed:
    """Keeps the last events in memory, numbered from 1. Adding never waits for a reader. Safe to use from threads."""

    def __init__(self, name: str, kept: int = _KEPT_EVENTS) -> None:
        """`name` tells the feed of this process from that of an earlier one; it has no hyphen."""
        self.name = name
        self._events: deque[tuple[int, str, str]] = deque(maxlen=kept)
        self._last = 0
        self._changed = threading.Condition()

    def add(self, kind: str, data: str) -> None:
        """Add an event; `data` is one line of JSON. The oldest event is dropped if there are too many."""
        with self._changed:
            self._last += 1
            self._events.append((self._last, kind, data))
            self._changed.notify_all()

    def number_of(self, event_id: str) -> int:
        """Return the number in an event's id; 0 if this feed has not given it."""
        name, _, digits = event_id.rpartition("-")
        number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else 0
        with self._changed:
            return number if name == self.name and number <= self._last else 0

    def after(self, number: int, timeout_s: float) -> tuple[list[tuple[int, str, str]], int]:
        """Return some events after a number, and how many between were dropped. Blocks until there is one, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._last > number, timeout_s)
            if self._last <= number:
                return [], 0
            first = self._events[0][0]
            found = list(islice(self._events, max(0, number + 1 - first), max(0, number + 1 - first) + _MOST_EVENTS))
            return found, max(0, first - number - 1)


class FeedReader:
    """A `PartSource` of a feed's events after the one with `last_id`; of another process's feed, from the oldest event."""

    def __init__(self, feed: EventFeed, last_id: str) -> None:
        self._feed = feed
        self._seen = feed.number_of(last_id)
        self._is_first = self._seen == 0

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def read(self) -> bytes | None:
        found, lost = self._feed.after(self._seen, _WAIT_S)
        if not found:
            return b""
        parts = []
        # Whoever begins gets what is kept; whoever has begun misses something.
        if lost and not self._is_first:
            parts.append(ServerEvent(LOST, json.dumps({"events": lost})).to_bytes())
        self._is_first = False
        parts += [ServerEvent(kind, data, f"{self._feed.name}-{number}").to_bytes() for number, kind, data in found]
        self._seen = found[-1][0]
        return b"".join(parts)

    def last_part(self, kind: str, why: str) -> bytes:
        return ServerEvent(kind, json.dumps({"why": why})).to_bytes()

    def close(self) -> None: ...
