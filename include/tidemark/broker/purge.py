"""Deleting from repartition topics what every task has committed past (rule 15): they are kept for ever otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.names import TopicPartition
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)


class RepartitionPurge:
    """Asks the broker now and then to delete below the committed offsets of this instance's tasks."""

    def __init__(self, plan: TopologyPlan, admin: AdminClient, interval_ms: int, clock: Callable[[], int]) -> None:
        self._interval_ms = interval_ms
        self._topics = set(plan.repartition_topics)
        self._admin = admin
        self._clock = clock
        self._asked_ms = clock()
        self._purged: dict[TopicPartition, int] = {}

    def run(self, committed: Mapping[TopicPartition, int]) -> None:
        """Ask when it is time; `committed` are next offsets after the last commit. Does not wait for the answer."""
        if not self._topics or self._clock() - self._asked_ms < self._interval_ms:
            return
        self._asked_ms = self._clock()
        due = {p: o for p, o in committed.items() if p.topic in self._topics and o > self._purged.get(p, 0)}
        if not due:
            return
        try:
            self._admin.delete_records([ClientPartition(p.topic, p.partition, offset) for p, offset in due.items()])
        except KafkaException as error:
            log.warning("repartition topics are not purged now: %s", error)
            return
        self._purged.update(due)
