"""The clients, evidence, copies and store builders that every restore of one application needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.errors import CopyUnusable, StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_configs, topic_ids
from tidemark.kafka.committed_reader import (
    ChangelogBatch,
    first_record_ms,
    messages_until,
    read_committed_until,
    stalled_after,
)
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.candidates import MEASURED, Rates
from tidemark.recovery.copy_source import CopySource, find_copies
from tidemark.recovery.evidence import SourceOfState, StateCopy, TaskEvidence
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.recovery.restore_plan import TaskCandidates, candidates_of_task
from tidemark.registry.operator_rights import verify_operator
from tidemark.registry.reader import resolved_description
from tidemark.registry.topic_identities import Identities
from tidemark.restore.bounds import Beginning, EvidenceBounds, Keeping, bounds_of
from tidemark.restore.listener import RestoreListener
from tidemark.restore.restorer import RestoreJob, Restorer
from tidemark.restore.store_builder import StoreBuilder, StoreOpener
from tidemark.restore.table_reader import NoTableReader
from tidemark.restore.task_opener import restore_job
from tidemark.restore.verify import Differing, StoreVerification, verify_folder
from tidemark.settings import Settings
from tidemark.topology.plan import StoreSpec, TopologyPlan


@dataclass(frozen=True)
class Found:
    """Kafka's evidence about one task, and the copies of its stores."""

    facts: TaskFacts
    copies: Mapping[str, Sequence[StateCopy]]


@dataclass(frozen=True)
class RestoreKit:
    """Everything that is needed to plan and run a restore of one application. `copies` are tried in the order of their cost."""

    plan: TopologyPlan
    settings: Settings
    admin: AdminClient
    client_config: Mapping[str, Any]
    ends: EndOffsets
    witnesses: Witnesses
    copies: Sequence[CopySource]
    clock: Callable[[], int]

    @classmethod
    def of(
        cls,
        plan: TopologyPlan,
        settings: Settings,
        copies: Sequence[CopySource],
        clock: Callable[[], int],
        command: Command | None = None,
    ) -> RestoreKit:
        """Create clients for the plan as the last upgrade or rescale left it.

        Blocks. Raises `InvalidSettings`, `OutcomeUnknown`, `StartRefused` if the state belongs to another topology, and
        `PreflightFailed` if the user may not do what `command` needs.
        """
        if command is not None:
            verify_operator(command, plan, settings, AdminClient(librdkafka_config(settings)))
        settled, found = resolved_description(plan, settings, AdminClient(librdkafka_config(settings)))
        return cls.exactly(settled, settings, copies, clock, {} if found is None else found.topic_ids)

    @classmethod
    def exactly(
        cls,
        plan: TopologyPlan,
        settings: Settings,
        copies: Sequence[CopySource],
        clock: Callable[[], int],
        known_ids: Mapping[str, str],
    ) -> RestoreKit:
        """Create clients for a plan whose stores have their generations already.

        `known_ids` are the ids of the topics that the last commits recorded. Raises `InvalidSettings`.
        """
        client = librdkafka_config(settings)
        admin = AdminClient(client)
        ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
        identities = Identities(known_ids, lambda topics: topic_ids(admin, topics, settings))
        witnesses = Witnesses(plan, settings, client, ends, changelog_policies(plan), clock, identities)
        return cls(plan, settings, admin, client, ends, witnesses, copies, clock)

    def tasks(self) -> list[TaskId]:
        """Return all tasks of the application. Raises `PreflightFailed`, which names a topic that is missing."""
        return task_ids(self.plan, partition_counts(self.admin, self.settings))

    def facts(self) -> dict[TaskId, TaskFacts]:
        """Return what Kafka knows about all tasks. Blocks."""
        return self.witnesses.facts(self.tasks())

    def builder(
        self, listener: RestoreListener, probe: Probe, copies: Sequence[CopySource], recomputed: Path | None = None
    ) -> StoreBuilder:
        """Return a builder of this application's stores from `copies`, changelogs, or what has been `recomputed`."""
        opener = StoreOpener(self.settings, Cache(self.settings.store_cache_bytes), self.clock)
        stalled_after_s = stalled_after(self.settings)
        restorer = Restorer(self.client_config, stalled_after_s, listener, probe, NoTableReader(), self.clock)
        return StoreBuilder(opener, restorer, copies, recomputed)

    def verify(
        self,
        task: TaskId,
        job: RestoreJob,
        folder: Path,
        should_continue: Callable[[], bool],
        differing: Differing | None = None,
    ) -> StoreVerification:
        """Compare a built store with its changelog, see `verify_folder`. Blocks."""
        return verify_folder(
            self.client_config,
            str(task),
            job,
            self._bounds(job, should_continue),
            folder,
            stalled_after_s=stalled_after(self.settings),
            memory_bytes=self.settings.verify_memory_bytes,
            should_continue=should_continue,
            differing=differing,
        )

    def beginning(
        self, spec: StoreSpec, changelog: TopicPartition, low: int, end: int, should_continue: Callable[[], bool]
    ) -> Beginning:
        """Return where a store's changelog begins. The first record's time is read only if the store has windows. Blocks."""
        if low == 0 or spec.segment_ms is None:
            return Beginning(low)
        stalled_after_s = stalled_after(self.settings)
        return Beginning(
            low,
            first_record_ms(
                self.client_config,
                changelog,
                low,
                end,
                stalled_after_s=stalled_after_s,
                should_continue=should_continue,
            ),
        )

    def _bounds(self, job: RestoreJob, should_continue: Callable[[], bool]) -> EvidenceBounds:
        """Return which keys of a built store can be compared with its changelog. Blocks."""
        topic, spec, target = job.changelog.topic, job.spec, job.target
        keeping = Keeping.of(topic, topic_configs(self.admin, [topic], self.settings)[topic])
        return bounds_of(
            spec,
            target.stream_time_ms,
            keeping.retention_ms,
            self.beginning(spec, job.changelog, job.low_offset, target.changelog_offset, should_continue),
            self.settings.max_timestamp_ahead_ms,
            self.clock(),
        )

    def read(
        self, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool] = lambda: True
    ) -> Iterator[ChangelogBatch]:
        """Yield the committed records of [start, end), see `read_committed_until`."""
        stalled_after_s = stalled_after(self.settings)
        return read_committed_until(
            self.client_config, partition, start, end, stalled_after_s=stalled_after_s, should_continue=should_continue
        )

    def messages(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Message]]:
        """Yield the same records with their timestamps and headers. Blocks."""
        stalled_after_s = stalled_after(self.settings)
        found = messages_until(
            self.client_config, partition, start, end, stalled_after_s=stalled_after_s, should_continue=lambda: True
        )
        return (messages for messages, _ in found)

    def buildable(self, task: TaskId) -> dict[str, StoreSpec]:
        """Return the stores that a restore builds: those that are logged and kept in RocksDB."""
        return {s.name: s for s in self.witnesses.logged_stores(task) if s.uncopied is None}

    def build(
        self,
        builder: StoreBuilder,
        found: Found,
        candidates: TaskCandidates,
        spec: StoreSpec,
        folder: Path,
        should_continue: Callable[[], bool],
        pass_over: Callable[[CopyUnusable], None],
        *,
        rates: Rates = MEASURED,
        may_be_gone: bool = False,
    ) -> RestoreJob:
        """Build one store from the source in `candidates`, or from the best of the others if that copy is unusable. Blocks.

        Returns the job that was done. `pass_over` is called with the error of an unusable copy, and may raise. `rates`
        and `may_be_gone` are as in `candidates`. Raises `StartRefused`, `RestoreSuspended`.
        """
        task = found.facts.task
        spoiled: list[str] = []
        while True:
            job = restore_job(self.plan, found.facts, spec, candidates.committed, self.clock())
            try:
                builder.build(task, job, candidates.candidates[spec.name], folder, should_continue)
                return job
            except CopyUnusable as error:
                pass_over(error)
                spoiled.append(candidates.candidates[spec.name].location)
                others = self.candidates(found, None, spoiled, stores=[spec.name], rates=rates, may_be_gone=may_be_gone)
                if others is None:
                    raise StartRefused(
                        f"task {task} has lost its commit record and offsets during the restore; try again"
                    ) from error
                candidates = others

    def evidence(self) -> dict[TaskId, Found]:
        """Return all evidence of each task.

        Copies are listed first, so that one that advances cannot be beyond the changelog's end.
        """
        tasks = self.tasks()
        copies = find_copies(self.copies, tasks)
        return {task: Found(facts, copies[task]) for task, facts in self.witnesses.facts(tasks).items()}

    def candidates(
        self,
        found: Found,
        only: SourceOfState | None,
        spoiled: Sequence[str] = (),
        *,
        stores: Collection[str] | None = None,
        rates: Rates = MEASURED,
        may_be_gone: bool = False,
    ) -> TaskCandidates | None:
        """Return the best source of each of one task's `stores` (all if None), without copies whose location is in `spoiled`.

        Returns None for a task that has never run. `rates` decide which source is the fastest. With `may_be_gone`, the
        sources may have deleted the next record to read.
        """
        buildable = [name for name in self.buildable(found.facts.task) if stores is None or name in stores]
        return candidates_of_task(self.weighed(found, only, spoiled), buildable, only, rates, may_be_gone=may_be_gone)

    def weighed(self, found: Found, only: SourceOfState | None, spoiled: Sequence[str] = ()) -> TaskEvidence:
        """Return the evidence by which a task's sources of state are compared.

        Copies whose location is in `spoiled` are left out.
        """
        copies = {store: [c for c in held if c.location not in spoiled] for store, held in found.copies.items()}
        evidence = self.witnesses.evidence(found.facts, copies)
        if only is not SourceOfState.SOURCE:
            return evidence
        compacted = self._compacted_sources
        sources = tuple(replace(s, is_compacted=s.partition.topic in compacted) for s in evidence.sources)
        return replace(evidence, sources=sources)

    @cached_property
    def _compacted_sources(self) -> frozenset[str]:
        """The source topics that are compacted, so do not keep every record."""
        topics = sorted({topic for s in self.plan.subtopologies for topic in s.source_topics})
        configs = topic_configs(self.admin, topics, self.settings)
        return frozenset(topic for topic, config in configs.items() if "compact" in config["cleanup.policy"])
