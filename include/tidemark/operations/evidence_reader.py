"""The evidence about an application's tasks: what Kafka knows of each, the copies of its stores, and the best of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.names import TaskId
from tidemark.operations.clients import Clients
from tidemark.recovery.candidates import MEASURED, Rates
from tidemark.recovery.copy_source import CopySource, find_copies
from tidemark.recovery.evidence import StateCopy, TaskEvidence
from tidemark.recovery.facts import TaskFacts, Witnesses
from tidemark.recovery.restore_plan import TaskCandidates, candidates_of_task
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.topology.plan import StoreSpec, TopologyPlan


@dataclass(frozen=True)
class Found:
    """Kafka's evidence about one task, and the copies of its stores."""

    facts: TaskFacts
    copies: Mapping[str, Sequence[StateCopy]]


@dataclass(frozen=True)
class EvidenceReader:
    """Reads the evidence about the tasks of one plan. `copies` are tried in the order of their cost."""

    clients: Clients
    witnesses: Witnesses
    copies: Sequence[CopySource]

    @property
    def plan(self) -> TopologyPlan:
        """The plan, with the generations of its stores."""
        return self.witnesses.plan

    def tasks(self) -> list[TaskId]:
        """Return all tasks of the application. Raises `PreflightFailed`, which names a topic that is missing."""
        return task_ids(self.plan, partition_counts(self.clients.admin, self.clients.settings))

    def facts(self) -> dict[TaskId, TaskFacts]:
        """Return what Kafka knows about all tasks. Blocks."""
        return self.witnesses.facts(self.tasks())

    def current_offsets(self) -> dict[TaskId, TaskFacts]:
        """Return the facts about all tasks without those that take longer, for repeated questions. Blocks."""
        return self.witnesses.current_offsets(self.tasks())

    def read(self) -> dict[TaskId, Found]:
        """Return all evidence of each task.

        Copies are listed first, so that one that advances cannot be beyond the changelog's end.
        """
        tasks = self.tasks()
        copies = find_copies(self.copies, tasks)
        return {task: Found(facts, copies[task]) for task, facts in self.witnesses.facts(tasks).items()}

    def buildable(self, task: TaskId) -> dict[str, StoreSpec]:
        """Return the stores that a restore builds: those that are logged and kept in RocksDB."""
        return {s.name: s for s in self.witnesses.logged_stores(task) if s.uncopied is None}

    def candidates(
        self,
        found: Found,
        only: SourceOfState | None,
        spoiled: Sequence[str] = (),
        *,
        stores: Collection[str] | None = None,
        rates: Rates = MEASURED,
        planned: str | None = None,
        may_be_gone: bool = False,
    ) -> TaskCandidates | None:
        """Return the best source of each of one task's `stores` (all if None), without copies whose location is in `spoiled`.

        Returns None for a task that has never run. `rates` decide which source is the fastest; the one at the location
        `planned` comes before all others. With `may_be_gone`, the sources may have deleted the next record to read.
        """
        buildable = [name for name in self.buildable(found.facts.task) if stores is None or name in stores]
        evidence = self.task_evidence(found, only, spoiled)
        return candidates_of_task(evidence, buildable, only, rates, planned=planned, may_be_gone=may_be_gone)

    def task_evidence(self, found: Found, only: SourceOfState | None, spoiled: Sequence[str] = ()) -> TaskEvidence:
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
        configs = topic_configs(self.clients.admin, topics, self.clients.settings)
        return frozenset(topic for topic, config in configs.items() if "compact" in config["cleanup.policy"])
