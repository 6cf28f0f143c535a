"""The metrics of an instance: what it has counted, and what its tasks, stores and brokers say at the scrape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocksdict import Cache

from tidemark.errors import OutcomeUnknown
from tidemark.instance.counters import InstanceCounters
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka.offsets import EndOffsets
from tidemark.metrics import table
from tidemark.metrics.metric import Readings
from tidemark.metrics.stores import read_store
from tidemark.names import TopicPartition, commits_topic
from tidemark.queries.hosts import StoreRestore
from tidemark.stores.protocol import MeasuredStore
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.task import Task, changelog_of
from tidemark.topology.plan import TopologyPlan

BROKER_ANSWER_S = 2.0
"""How long a scrape waits for brokers. Prometheus waits 10 s for a scrape by default."""


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

    def read(self, readings: Readings) -> None:
        """Add everything to the values of a scrape. Blocks for two round trips to brokers, or a few seconds without them."""
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
        logged = sorted({place for _, _, place in changelogs})
        asked = sorted({TopicPartition(commits_topic(app), 0), *(place for _, place, _ in sources), *logged})
        try:
            ends, beginnings = self.ends.of(asked), self.ends.beginnings(logged)
        except OutcomeUnknown:
            readings.add(table.BROKER_REACHABLE, 0)
            return
        readings.add(table.BROKER_REACHABLE, 1)
        for task_id, place, offset in sources:
            readings.add(table.RECORDS_LAG, ends[place] - offset, str(task_id), place.topic)
        for task_id, store, place in changelogs:
            readings.add(table.CHANGELOG_OFFSETS, ends[place] - beginnings[place], str(task_id), store)


def _read_task(readings: Readings, task: Task) -> None:
    name, newest_ms = str(task.id), task.stream_times.task_ms
    for topic, offset in task.next_offsets.items():
        readings.add(table.COMMITTED_OFFSET, offset, name, topic)
    if newest_ms != NO_STREAM_TIME:
        readings.add(table.STREAM_TIME, newest_ms / 1000, name)
    for store, held in task.stores.items():
        if isinstance(held, MeasuredStore):
            read_store(readings, task.id, store, held.figures())
