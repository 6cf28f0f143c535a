"""A process that writes events to the database of facts; several are started at once."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path

from tidemark.database import FactsDatabase
from tidemark.events.event import Event, EventKind
from tidemark.events.table import write_event
from tidemark.settings import Settings


def write(var_dir: str, instance: int, events: int, at_once: Barrier) -> None:
    """Write so many events, beginning when all are ready."""
    facts = FactsDatabase(Settings.load(var_dir=Path(var_dir)))
    at_once.wait(120)
    for time_ms in range(events):
        write_event(facts, Event(EventKind.STATE, "app", "1", instance, time_ms, {"new": "RUNNING", "old": "CREATED"}))
