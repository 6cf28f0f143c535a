"""Writes events to `<app>-events`, outside of every transaction and without waiting for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tidemark.events.event import Event
from tidemark.names import Topic

log = logging.getLogger(__name__)

_MAX_QUEUED_EVENTS = 10_000
_DELIVERY_TIMEOUT_MS = 30_000


class EventTopic:
    """An `EventSink` with an idempotent producer of its own. The key of an event is the instance number.

    Events that the broker does not accept in time, or that do not fit into the queue, are lost: one warning is logged, and
    their count at the end.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        topic: Topic,
        *,
        max_queued_events: int = _MAX_QUEUED_EVENTS,
        delivery_timeout_ms: int = _DELIVERY_TIMEOUT_MS,
    ) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._published = 0
        self._delivered = 0
        self._has_warned = False
        self._producer = Producer(
            {
                **client_config,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "message.timeout.ms": delivery_timeout_ms,
                "queue.buffering.max.messages": max_queued_events,
                "on_delivery": self._on_delivery,
            }
        )

    @property
    def undelivered(self) -> int:
        """Return the number of events that were dropped or are not acknowledged yet."""
        with self._lock:
            return self._published - self._delivered

    def publish(self, event: Event) -> None:
        """Queue the event, or drop it if the queue is full. Does not block."""
        with self._lock:
            self._published += 1
        try:
            self._producer.produce(self._topic, event.to_json().encode(), str(event.instance).encode())
            self._producer.poll(0)
        except (BufferError, KafkaException) as error:
            self._warn(str(error))

    def close(self, timeout_s: float) -> None:
        """Wait for acknowledgements, for at most `timeout_s`; drop the events that are left then."""
        self._producer.flush(timeout_s)
        lost = self.undelivered
        if lost:
            log.warning("%s: %d events were not written", self._topic, lost)
        self._producer.purge()

    def _on_delivery(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._warn(error.str())
            return
        with self._lock:
            self._delivered += 1

    def _warn(self, reason: str) -> None:
        with self._lock:
            if self._has_warned:
                return
            self._has_warned = True
        log.warning(
            "%s: events are dropped: %s; the stream continues, later ones are only counted", self._topic, reason
        )
