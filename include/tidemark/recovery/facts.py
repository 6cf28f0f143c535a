"""Queries to Kafka about tasks: committed offsets, commit records, watermarks.

See invariants: end of a restore, fresh only when nothing exists, two retentions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import TopicPartition as ClientPartition

from tidemark.commit.history import last_commit_records, last_lost_writes, oldest_writes
from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.offsets import EndOffsets, committed_offsets, retry_until_stable
from tidemark.kafka.topic_config import ChangelogPolicy
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.evidence import (
    CLOCKS_MS,
    KeptDeletions,
    SourceEvidence,
    StateCopy,
    StoreEvidence,
    TaskEvidence,
    Watermarks,
)
from tidemark.recovery.recomputable import not_recomputable_reason
from tidemark.registry.kept_history import KeptHistory
from tidemark.registry.topic_identities import Identities, LostTopic
from tidemark.settings import Settings
from tidemark.tasks.task import changelog_of
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan


@dataclass(frozen=True)
class TaskFacts:
    """Kafka's evidence about one task; `changelogs` by store, `lost` topics of the application by name.

    `young` holds, by store, an offset from which on all records are too young to be deleted by age, for changelogs that lost
    their beginning; it is the first such offset if any of them is missing. `lost_until_ms` holds, by store, its
    stream time after the last commit that wrote to what such a changelog has lost.
    """

    task: TaskId
    committed: Mapping[TopicPartition, ClientPartition]
    record: CommitRecord | None
    sources: Mapping[TopicPartition, Watermarks]
    changelogs: Mapping[str, Watermarks]
    lost: Mapping[str, LostTopic] = field(default_factory=dict)
    young: Mapping[str, int] = field(default_factory=dict)
    lost_until_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def committed_offsets(self) -> dict[TopicPartition, ClientPartition | None]:
        """The committed offset of each source partition with its metadata; None where there is none."""
        return {partition: self.committed.get(partition) for partition in self.sources}

    @property
    def offsets_ms(self) -> int:
        """When the offsets of the task were committed, in epoch milliseconds; 0 if the group does not have all of them."""
        has_all = self.committed.keys() >= self.sources.keys()
        return self.record.commit_time_ms if self.record is not None and has_all else 0

    @property
    def last_instance(self) -> int | None:
        """The instance that committed last; None if none has."""
        return None if self.record is None else self.record.instance


@dataclass(frozen=True)
class Witnesses:
    """Asks Kafka for the facts about tasks and turns them into evidence. `clock` returns epoch milliseconds.

    `not_recomputable` and `kept_history` are as in `Description`.
    """

    plan: TopologyPlan
    settings: Settings
    client_config: Mapping[str, Any]
    ends: EndOffsets
    policies: Mapping[str, ChangelogPolicy]
    clock: Callable[[], int]
    identities: Identities = field(default_factory=Identities)
    not_recomputable: Mapping[str, str] = field(default_factory=dict)
    kept_history: Mapping[str, KeptHistory] = field(default_factory=dict)

    def sources_of(self, task: TaskId) -> list[TopicPartition]:
        """Return the partitions that a task reads, the lead topic's first."""
        return [TopicPartition(t, task.partition) for t in self.plan.subtopologies[task.subtopology].source_topics]

    def changelog_of(self, task: TaskId, spec: StoreSpec) -> TopicPartition:
        """Return the partition that a logged store of a task is rebuilt from."""
        return TopicPartition(changelog_of(self.plan.application_id, spec), task.partition)

    def kept_deletions(self, spec: StoreSpec) -> KeptDeletions:
        """Return for how long the changelog of a store keeps deletions."""
        policy_ms = self.policies[spec.name].delete_retention_ms
        known = self.kept_history.get(changelog_of(self.plan.application_id, spec))
        if known is None:
            return KeptDeletions(policy_ms)
        retention_ms = min(policy_ms, known.delete_retention_ms)
        return KeptDeletions(retention_ms, known.deletions_raised_ms, known.smaller_delete_retention_ms)

    def logged_stores(self, task: TaskId) -> list[StoreSpec]:
        """Return the stores that can be restored."""
        return [spec for spec in self.plan.subtopologies[task.subtopology].stores if spec.is_logged]

    def facts(
        self, tasks: Sequence[TaskId], known_lost: Mapping[str, LostTopic] | None = None
    ) -> dict[TaskId, TaskFacts]:
        """Return what Kafka knows about each task, as any plan needs it. Blocks; raises `OutcomeUnknown`.

        `known_lost` is as in `current_offsets`.
        """
        return self.with_lost_writes(self.facts_for_local_stores(tasks, known_lost))

    def facts_for_local_stores(
        self, tasks: Sequence[TaskId], known_lost: Mapping[str, LostTopic] | None = None
    ) -> dict[TaskId, TaskFacts]:
        """Return the facts without `lost_until_ms`, which takes longer. Blocks; raises `OutcomeUnknown`.

        They suffice for a start plan unless `is_decided_by_lost_writes` says otherwise. `known_lost` is as in
        `current_offsets`.
        """
        current = self.current_offsets(tasks, known_lost)
        shortened = self._shortened(current)
        lows = self._lows(current)
        # A record is older than its commit by at most the time of a transaction, and clocks differ.
        margin_ms = self.settings.transaction_timeout_ms + CLOCKS_MS
        young: dict[TopicPartition, int] = {}
        for retention_ms, wanted in shortened.items():
            since_ms = self.clock() - retention_ms + margin_ms
            young |= oldest_writes(
                self.client_config, self.ends, self.plan.application_id, wanted, lows, since_ms,
                stalled_after_s=stalled_after(self.settings),
            )  # fmt: skip
        return {
            task: replace(each, young={name: young[at] for name, at in self._changelogs(task).items() if at in young})
            for task, each in current.items()
        }

    def with_lost_writes(self, found: Mapping[TaskId, TaskFacts]) -> dict[TaskId, TaskFacts]:
        """Return facts with `lost_until_ms`. Blocks: searches the commit records; raises `OutcomeUnknown`."""
        shortened = {at: task for wanted in self._shortened(found).values() for at, task in wanted.items()}
        lost = last_lost_writes(
            self.client_config, self.ends, self.plan.application_id, shortened, self._lows(found),
            last_records={task: each.record for task, each in found.items() if each.record is not None},
            stalled_after_s=stalled_after(self.settings),
        )  # fmt: skip
        return {
            task: replace(
                each,
                lost_until_ms={
                    name: lost[at].stream_times.of(name) for name, at in self._changelogs(task).items() if at in lost
                },
            )
            for task, each in found.items()
        }

    def current_offsets(
        self, tasks: Sequence[TaskId], known_lost: Mapping[str, LostTopic] | None = None
    ) -> dict[TaskId, TaskFacts]:
        """Return the facts without `young` and `lost_until_ms`, which take longer. Blocks; raises `OutcomeUnknown`.

        Asks for offsets first, then records, then ends (see invariant: end of a restore). A deleted topic has
        watermarks of 0. `known_lost` is what `identities.lost` has just returned; without it, Kafka is asked, which takes
        two seconds if a topic is gone.
        """
        stalled_after_s = stalled_after(self.settings)
        lost = self.identities.lost(self.plan) if known_lost is None else known_lost
        gone = {topic for topic, each in lost.items() if each.found_id is None}
        sources = [partition for task in tasks for partition in self.sources_of(task)]
        group = self.plan.application_id
        committed = retry_until_stable(
            lambda: committed_offsets(self.client_config, group, sources, stalled_after_s), group, stalled_after_s
        )
        records = last_commit_records(
            self.client_config, self.ends, self.plan.application_id, tasks, stalled_after_s=stalled_after_s
        )
        changelogs = [self.changelog_of(task, spec) for task in tasks for spec in self.logged_stores(task)]
        asked = [*sources, *changelogs]
        there = [partition for partition in asked if partition.topic not in gone]
        lows, ends = self.ends.beginnings(there), self.ends.of(there)
        watermarks = {partition: Watermarks(lows.get(partition, 0), ends.get(partition, 0)) for partition in asked}
        return {
            task: TaskFacts(
                task,
                {p: committed[p] for p in self.sources_of(task) if p in committed},
                records.get(task),
                {p: watermarks[p] for p in self.sources_of(task)},
                {spec.name: watermarks[self.changelog_of(task, spec)] for spec in self.logged_stores(task)},
                lost,
            )
            for task in tasks
        }

    def _changelogs(self, task: TaskId) -> dict[str, TopicPartition]:
        return {spec.name: self.changelog_of(task, spec) for spec in self.logged_stores(task)}

    def _lows(self, found: Mapping[TaskId, TaskFacts]) -> dict[TopicPartition, int]:
        return {
            at: facts.changelogs[name].low
            for task, facts in found.items()
            for name, at in self._changelogs(task).items()
        }

    def _shortened(self, found: Mapping[TaskId, TaskFacts]) -> dict[int, dict[TopicPartition, TaskId]]:
        """Return the changelogs with a retention that lost their beginning, and their tasks, by that retention."""
        shortened: dict[int, dict[TopicPartition, TaskId]] = {}
        for task, facts in found.items():
            for spec in self.logged_stores(task):
                retention_ms = self.policies[spec.name].retention_ms
                if spec.source_topic is None and retention_ms is not None and facts.changelogs[spec.name].low > 0:
                    shortened.setdefault(retention_ms, {})[self.changelog_of(task, spec)] = task
        return shortened

    def evidence(self, facts: TaskFacts, copies: Mapping[str, Sequence[StateCopy]]) -> TaskEvidence:
        """Return the evidence for the start plan, from facts and the copies that were found of each store."""
        task = facts.task
        earliest = self.settings.auto_offset_reset == "earliest"
        # Nothing may be skipped between two sub-topologies, nor in partitions that a routed topic got later.
        internal = {*self.plan.repartition_topics, *self.plan.routed}
        lead = facts.committed.get(self.sources_of(task)[0])
        return TaskEvidence(
            application_id=self.plan.application_id,
            task=task,
            sources=tuple(
                SourceEvidence(
                    partition,
                    facts.committed[partition].offset if partition in facts.committed else None,
                    watermarks,
                    watermarks.low if earliest or partition.topic in internal else watermarks.end,
                    lost=facts.lost.get(partition.topic),
                )
                for partition, watermarks in facts.sources.items()
            ),
            committed_metadata=None if lead is None else OffsetMetadata.decode(lead.metadata),
            last_record=facts.record,
            stores=tuple(self._store(facts, spec, copies.get(spec.name, ())) for spec in self.logged_stores(task)),
            now_ms=self.clock(),
        )

    def _store(self, facts: TaskFacts, spec: StoreSpec, copies: Sequence[StateCopy]) -> StoreEvidence:
        subtopology = self.plan.subtopologies[facts.task.subtopology]
        layout = value_layouts(subtopology)[spec.name]
        policy = self.policies[spec.name]
        return StoreEvidence(
            store=spec.name,
            value_layout=value_signature(spec, layout),
            copies=tuple(copies),
            changelog=self.changelog_of(facts.task, spec),
            changelog_watermarks=facts.changelogs[spec.name],
            kept_deletions=self.kept_deletions(spec),
            store_retention_ms=spec.retention_ms,
            changelog_retention_ms=policy.retention_ms,
            is_source=spec.source_topic is not None,
            not_recomputable_reason=self.not_recomputable.get(spec.name)
            or not_recomputable_reason(self.plan, subtopology, spec),
            lost=facts.lost.get(self.changelog_of(facts.task, spec).topic),
            young_offset=facts.young.get(spec.name),
            lost_until_ms=facts.lost_until_ms.get(spec.name),
        )
