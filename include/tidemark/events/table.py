"""The table `events`: the events of instances, except the batches of restores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text, select

from tidemark.database import METADATA, FactsDatabase, id_column
from tidemark.events.event import Event, EventKind

EVENTS = Table(
    "events",
    METADATA,
    id_column(),
    Column("application_id", String(200), nullable=False),
    Column("topology_version", String(200), nullable=False),
    Column("instance", Integer, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("events_of_application", "application_id", "time_ms"),
)

_LATE_IDS = 1000


def write_event(facts: FactsDatabase, event: Event) -> None:
    """Add one row. Blocks. Raises `FactsUnavailable`."""
    row = {
        "application_id": event.application_id,
        "topology_version": event.topology_version,
        "instance": event.instance,
        "time_ms": event.time_ms,
        "kind": str(event.kind),
        "body": json.dumps(dict(event.body)),
    }
    facts.insert(EVENTS, [row])


class EventReader:
    """Reads the events of an application since `since_ms`, each once, in the order in which they were written."""

    def __init__(self, facts: FactsDatabase, application_id: str, since_ms: int) -> None:
        self._facts = facts
        self._application_id = application_id
        self._since_ms = since_ms
        self._seen: set[int] = set()

    def new(self) -> Iterator[Event]:
        """Yield the events that were not yielded before. Blocks. Raises `FactsUnavailable`."""
        # A row with a smaller id may be committed after one with a larger id, so the last ids are read again.
        after = max(self._seen, default=0) - _LATE_IDS
        columns = EVENTS.c
        query = (
            select(EVENTS)
            .where(columns.application_id == self._application_id, columns.time_ms >= self._since_ms)
            .where(columns.id > after)
            .order_by(columns.id)
        )
        for row in self._facts.read(query):
            if row.id not in self._seen:
                self._seen.add(row.id)
                yield _event(row)
        self._seen = {seen for seen in self._seen if seen > after}


def newest_events(facts: FactsDatabase, application_id: str, limit: int) -> list[Event]:
    """Return the newest events, the newest first. Blocks. Raises `FactsUnavailable`."""
    columns = EVENTS.c
    query = select(EVENTS).where(columns.application_id == application_id)
    return [_event(row) for row in facts.read(query.order_by(columns.time_ms.desc(), columns.id.desc()).limit(limit))]


def _event(row: Any) -> Event:
    return Event(
        EventKind(row.kind), row.application_id, row.topology_version, row.instance, row.time_ms, json.loads(row.body)
    )
