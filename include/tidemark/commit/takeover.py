"""Takes the transactional id of an instance over: its open transaction is settled, and copies of it can no longer commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.commit.history import last_commit_records
from tidemark.commit.lost_markers import LostMarkers
from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import TidemarkError
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.group import has_member, members
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.record_sizes import SMALL_BATCH_BYTES
from tidemark.kafka.topics import changelog_topics, partition_counts, written_partitions
from tidemark.kafka.transactions import held_partitions
from tidemark.names import (
    TaskId,
    TopicPartition,
    commits_topic,
    group_instance_id,
    transactional_id,
)
from tidemark.settings import Settings
from tidemark.topology.plan import Guarantee, TopologyPlan

log = logging.getLogger(__name__)

_QUEUED_RECORDS = 500_000
_HELD_S = 1.0
"""A marker that is on its way arrives sooner."""


@dataclass(frozen=True)
class Takeover:
    """Takes over transactional ids of the instances of one application."""

    plan: TopologyPlan
    settings: Settings
    client_config: Mapping[str, Any]
    admin: AdminClient
    ends: EndOffsets

    def of(self, instance: int, timeout_ms: int) -> TransactionalProducer:
        """Return an initialised producer with the instance's transactional id and this transaction time-out. Blocks.

        Raises `PreflightFailed` if only the instance itself can end what it has left open, and what `LostMarkers.init` raises.
        """
        name = transactional_id(self.plan.application_id, instance)
        client = {**self.client_config, "batch.size": SMALL_BATCH_BYTES}
        producer = TransactionalProducer(client, name, timeout_ms, _QUEUED_RECORDS)
        places = written_partitions(self.plan, partition_counts(self.admin, self.settings))
        LostMarkers(producer, self.admin, self.ends, self.settings, places).init(
            stalled_after(self.settings), ends_them=False
        )
        return producer

    def of_dead_owners(self, tasks: Sequence[TaskId], own: int) -> None:
        """End the transactions that dead instances have left open in the commit records and changelogs of tasks. Blocks.

        A broker ends them only after their time-out, and looks every ten seconds. An instance is dead if it has committed such
        a task last and is not in the group, which has given the task to the instance `own`. If it still runs, it can no longer
        commit, and starts again. Never raises: what is not ended is left to its time-out.
        """
        if self.plan.guarantee is not Guarantee.EXACTLY_ONCE:
            return
        try:
            app = self.plan.application_id
            for instance in sorted(self._owners_before(tasks) - {own}):
                if not has_member(members(self.settings, self.admin, app), group_instance_id(app, instance)):
                    log.warning("instance %d is gone and may have left a transaction open; ending it", instance)
                    self.of(instance, self.settings.transaction_timeout_ms)
        except TidemarkError as error:
            log.warning("a transaction of a dead instance is left to its time-out: %s", error)

    def _owners_before(self, tasks: Sequence[TaskId]) -> set[int]:
        """Return the instances that have committed last those tasks that an open transaction holds back."""
        written = {task: self._written(task) for task in tasks}
        held = held_partitions(self.ends, sorted({p for places in written.values() for p in places}), _HELD_S)
        waiting = [task for task, places in written.items() if not held.keys().isdisjoint(places)]
        app = self.plan.application_id
        commits = sorted({TopicPartition(commits_topic(app), task.partition) for task in waiting})
        records = last_commit_records(
            self.client_config, self.ends, app, waiting,
            stalled_after_s=stalled_after(self.settings), end_offsets=self.ends.stable(commits),
        )  # fmt: skip
        return {record.instance for record in records.values()}

    def _written(self, task: TaskId) -> list[TopicPartition]:
        app = self.plan.application_id
        logged = changelog_topics(app, self.plan.subtopologies[task.subtopology].stores)
        return [TopicPartition(topic, task.partition) for topic in (commits_topic(app), *logged)]
