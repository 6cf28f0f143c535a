"""Deletion of committed records from repartition topics, which otherwise keep them for ever.

See invariant: one transaction per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.clock import monotonic_ms
from tidemark.kafka.attempts import refresh_metadata
from tidemark.names import TopicPartition
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_LEADERS_S = 1.0
KEPT_OFFSETS = 1
"""Offsets before the end of a partition that a purge keeps. A broker that starts with an empty partition forgets its leader
epochs. If all replicas were killed at once, they then return to the high watermark that each had written to disk up to five
seconds before (Kafka 4.3), and the partition ends before what was committed.
"""


class RepartitionPurge:
    """Deletes records below the committed offsets of this instance's tasks at an interval, except for the last one."""

    def __init__(
        self, plan: TopologyPlan, admin: AdminClient, interval_ms: int, clock: Callable[[], int] = monotonic_ms
    ) -> None:
        """`clock` returns milliseconds and is never set back: otherwise nothing would be deleted for as long."""
        self._interval_ms = interval_ms
        self._topics = set(plan.repartition_topics)
        self._admin = admin
        self._clock = clock
        self._asked_ms = clock()
        self._purged: dict[TopicPartition, int] = {}
        self._asked: list[tuple[TopicPartition, int, Future[Any]]] = []

    def run(self, committed: Mapping[TopicPartition, int]) -> None:
        """Send a request if the interval is over. `committed` are the next offsets after the last commit. Does not block."""
        if not self._topics or self._clock() - self._asked_ms < self._interval_ms:
            return
        self._asked_ms = self._clock()
        self._take_answers()
        unanswered = {place for place, _, _ in self._asked}
        due = {
            p: o - KEPT_OFFSETS
            for p, o in committed.items()
            if p.topic in self._topics and p not in unanswered and o - KEPT_OFFSETS > self._purged.get(p, 0)
        }
        if not due:
            return
        try:
            asked = self._admin.delete_records(
                [ClientPartition(p.topic, p.partition, at) for p, at in due.items()], request_timeout=_ANSWER_S
            )
        except KafkaException as error:
            log.warning("failed to ask for the purge of repartition topics; it is tried again later: %s", error)
            return
        self._asked += [(TopicPartition(p.topic, p.partition), p.offset, answer) for p, answer in asked.items()]

    def _take_answers(self) -> None:
        """Remember the deletions that succeeded. If one failed, refresh the leaders, so that the next request reaches them."""
        answered = [one for one in self._asked if one[2].done()]
        self._asked = [one for one in self._asked if one not in answered]
        self._purged |= {place: offset for place, offset, answer in answered if answer.exception() is None}
        failed = [f"{place}: {error}" for place, _, answer in answered if (error := answer.exception()) is not None]
        if failed:
            log.warning("failed to purge repartition topics; it is tried again now: %s", "; ".join(failed))
            refresh_metadata(self._admin, _LEADERS_S)
