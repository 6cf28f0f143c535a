"""Turns the callbacks of an instance into events, and passes them to the places where events are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tidemark.events.event import (
    Event,
    EventKind,
    Rebalance,
    Waiting,
    failure_body,
    rebalance_body,
    restore_body,
    state_body,
    waiting_body,
)
from tidemark.events.listeners import Closable
from tidemark.restore.listener import BatchPace, RestoreProgress
from tidemark.supervision.state import InstanceState


class EventSink(Closable, Protocol):
    """A place where events are kept."""

    def publish(self, event: Event) -> None:
        """Take the event, or drop and count it; neither blocks nor raises. Safe to call from several threads."""


class EventRecorder:
    """An `InstanceListener` that gives every sink the same events in the same order; at most one batch a second and store."""

    def __init__(
        self,
        application_id: str,
        topology_version: str,
        instance: int,
        clock: Callable[[], int],
        sinks: Sequence[EventSink],
    ) -> None:
        self._of = (application_id, topology_version, instance)
        self._clock = clock
        self._sinks = sinks
        self._pace = BatchPace()
        self._lock = threading.Lock()

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        self._publish(EventKind.STATE, state_body(new, old))

    def on_failure(self, failure: BaseException) -> None:
        self._publish(EventKind.FAILURE, failure_body(failure))

    def on_rebalance(self, rebalance: Rebalance) -> None:
        self._publish(EventKind.REBALANCE, rebalance_body(rebalance))

    def on_waiting(self, waiting: Waiting) -> None:
        kind = EventKind.WAITING if waiting.waited_s is None else EventKind.WAITING_END
        self._publish(kind, waiting_body(waiting))

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._pace.start(progress)
        self._publish(EventKind.RESTORE_START, restore_body(progress))

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        if self._pace.is_due(progress):
            self._publish(EventKind.RESTORE_BATCH, restore_body(progress))

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._publish(EventKind.RESTORE_END, restore_body(progress))

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._publish(EventKind.RESTORE_SUSPENDED, restore_body(progress))

    def _publish(self, kind: EventKind, body: Mapping[str, Any]) -> None:
        with self._lock:
            event = Event(kind, *self._of, self._clock(), body)
            for sink in self._sinks:
                sink.publish(event)
