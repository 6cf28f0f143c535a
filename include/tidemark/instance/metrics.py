"""The metrics of an instance: what it has counted, and what its tasks, stores and brokers say at the scrape."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rocksdict import Cache

from tidemark.errors import OutcomeUnknown
from tidemark.instance.counters import InstanceCounters
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.offsets import EndOffsets, is_unanswered
from tidemark.metrics import table
from tidemark.metrics.metric import Readings
from tidemark.metrics.stores import read_store
from tidemark.names import TopicPartition, commits_topic
from tidemark.queries.hosts import StoreRestore
from tidemark.stores.protocol import MeasuredStore
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.task import Task, changelog_of
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

BROKER_ANSWER_S = 2.0
"""How long a scrape waits for brokers. Prometheus waits 10 s for a scrape by default."""
REMEMBERED_REASONS = 16
"""The number of reasons that are not logged again. The oldest are forgotten, because a reason may contain a changing number."""


@dataclass(frozen=True)
class InstanceMetrics:
    """Reads everything for a scrape, in the thread of its caller. `tasks` returns those that the instance owns now."""

    plan: TopologyPlan
    counters: InstanceCounters
    tasks: Callable[[], Sequence[Task]]
    restores: Callable[[], Sequence[StoreRestore]]
    ends: EndOffsets
    size: BatchSize
    cache: Cache
    _logged: deque[str] = field(init=False, default_factory=lambda: deque(maxlen=REMEMBERED_REASONS))

    def read(self, readings: Readings) -> None:
        """Add everything to the values of a scrape. Blocks for a few round trips to brokers, or some seconds without them."""
        self.counters.read(readings)
        tasks = self.tasks()
        readings.add(table.TOPOLOGY_INFO, 1, self.plan.version)
        readings.add(table.TASKS, len(tasks))
        readings.add(table.BATCH_RECORDS, self.size.records)
        readings.add(table.ROCKSDB_CACHE, self.cache.get_usage())
        for restore in self.restores():
            remaining = max(0, restore.end_offset - restore.next_offset)
            readings.add(table.RESTORE_REMAINING, remaining, restore.store, str(restore.partition))
        for task in tasks:
            _read_task(readings, task)
        self._read_offsets(readings, tasks)

    def _read_offsets(self, readings: Readings, tasks: Sequence[Task]) -> None:
        app = self.plan.application_id
        # Before the ends, so that no lag is negative.
        sources = [(task.id, place, offset) for task in tasks for place, offset in task.sources.items()]
        changelogs = [
            (task.id, spec.name, TopicPartition(changelog_of(app, spec), task.id.partition))
            for task in tasks
            for spec in task.subtopology.stores
            if spec.is_logged
        ]
        places = sorted({TopicPartition(commits_topic(app), 0), *(place for _, place, _ in sources)})
        logged = sorted({place for _, _, place in changelogs})
        source_ends, is_first_reached = self._offsets(self.ends.of, places)
        # An answer that does not come takes seconds, so the scrape waits for one only.
        changelog_ends, is_second_reached = self._offsets(self.ends.of, logged) if is_first_reached else ({}, False)
        beginnings, is_third_reached = self._offsets(self.ends.beginnings, sorted(changelog_ends))
        readings.add(table.BROKER_REACHABLE, int(is_first_reached and is_second_reached and is_third_reached))
        for task_id, place, offset in sources:
            if place in source_ends:
                readings.add(table.RECORDS_LAG, source_ends[place] - offset, str(task_id), place.topic)
        for task_id, store, place in changelogs:
            if place in beginnings:
                size = changelog_ends[place] - beginnings[place]
                readings.add(table.CHANGELOG_OFFSETS, size, str(task_id), store)

    def _offsets(
        self, ask: Callable[[Sequence[TopicPartition]], dict[TopicPartition, int]], places: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], bool]:
        """Return what brokers answer, nothing if they do not, and whether they could be reached."""
        try:
            return ask(places), True
        except OutcomeUnknown as unknown:
            why = str(unknown)
            if why not in self._logged:
                self._logged.append(why)
                log.warning("a metric of %s is left out: %s", self.plan.application_id, why)
            return {}, not is_unanswered(unknown)


def _read_task(readings: Readings, task: Task) -> None:
    name, newest_ms = str(task.id), task.stream_times.task_ms
    for topic, offset in task.next_offsets.items():
        readings.add(table.COMMITTED_OFFSET, offset, name, topic)
    if newest_ms != NO_STREAM_TIME:
        readings.add(table.STREAM_TIME, newest_ms / 1000, name)
    for store, held in task.stores.items():
        if isinstance(held, MeasuredStore):
            read_store(readings, task.id, store, held.figures())
