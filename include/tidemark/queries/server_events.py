"""Server-sent events: their form on the wire, as the HTML standard describes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE = b": nothing new\n\n"
"""A comment, which tells a client that the connection still works."""

CHANGE = "change"
"""The kind of an event with a key's new value, or null if the key was deleted."""
POSITION = "position"
"""The kind of an event that only says how far a watch has come: the first one, and then while nothing changes."""
SLOW, GONE, END, LOST = "slow", "gone", "end", "lost"
"""Kinds of events about the stream itself: the client does not read; the changes no longer exist; the process ends; events were
left out."""


@dataclass(frozen=True)
class ServerEvent:
    """One event. `data` is one line of JSON. A client continues after an event with its `id` as `Last-Event-ID`."""

    kind: str
    data: str
    id: str | None = None

    def to_bytes(self) -> bytes:
        """Return the event as it is sent."""
        head = "" if self.id is None else f"id: {self.id}\n"
        return f"{head}event: {self.kind}\ndata: {self.data}\n\n".encode()


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Yield the events of a stream of lines. An event that is not complete at the end is left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield ServerEvent(fields.get("event", "message"), fields["data"], fields.get("id"))
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
