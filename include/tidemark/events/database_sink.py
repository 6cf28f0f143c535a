"""Writes events to the database of facts from its own thread: a database that is away never stops a stream."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress

from tidemark.database import FactsDatabase
from tidemark.errors import FactsUnavailable
from tidemark.events.event import Event, EventKind
from tidemark.events.table import write_event

log = logging.getLogger(__name__)

_QUEUED_EVENTS = 1000
_RETRY_S = 5.0
_CLOSE_LOOK_S = 0.05


class EventWriter:
    """An `EventSink`. While the database is away, events wait in the queue, and those that do not fit are dropped.

    Logs one warning, and a count at the end.
    """

    def __init__(self, facts: FactsDatabase, *, queued_events: int = _QUEUED_EVENTS, retry_s: float = _RETRY_S) -> None:
        self._facts = facts
        self._retry_s = retry_s
        self._events: queue.Queue[Event | None] = queue.Queue(queued_events)
        self._closing = threading.Event()
        self._is_away = False
        self._published = 0
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="facts", daemon=True)
        self._thread.start()

    @property
    def unwritten(self) -> int:
        """Return the number of events that were dropped or still wait."""
        return self._published - self._written

    def publish(self, event: Event) -> None:
        """Queue the event, or drop it if the queue is full. Batches of a restore are not written to the database."""
        if event.kind is EventKind.RESTORE_BATCH:
            return
        self._published += 1
        try:
            self._events.put_nowait(event)
        except queue.Full:
            # The database is away or slow; the first failure was logged, the count follows at the end.
            return

    def close(self, timeout_s: float) -> None:
        """Write the events that wait; drop those that cannot be written now. Blocks for at most `timeout_s`."""
        until = time.monotonic() + timeout_s
        self._closing.set()
        # If the database cannot be reached, the writer thread ends now and takes no more events from the queue. If the queue
        # is full, there is then never room for the mark of its end.
        while self._thread.is_alive() and time.monotonic() < until:
            with suppress(queue.Full):
                self._events.put(None, timeout=_CLOSE_LOOK_S)
                break
        self._thread.join(max(0.0, until - time.monotonic()))
        if self.unwritten:
            log.warning("%d events were not written to the database of facts", self.unwritten)
        if not self._thread.is_alive():
            self._facts.close()

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            while not self._write(event):
                if self._closing.wait(self._retry_s):
                    return

    def _write(self, event: Event) -> bool:
        try:
            write_event(self._facts, event)
        except FactsUnavailable as error:
            if not self._is_away:
                log.warning("%s; the stream continues, its events wait", error)
            self._is_away = True
            return False
        if self._is_away:
            log.info("events are written to the database of facts again")
        self._is_away = False
        self._written += 1
        return True
