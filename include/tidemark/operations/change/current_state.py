"""The state of an application before a change: its description, the progress of its tasks, and the ends of its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import PreflightFailed, StartRefused
from tidemark.kafka.topics import format_partitions, partition_counts, task_ids, user_topics, with_repartition_topics
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.clients import Clients
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources
from tidemark.operations.evidence_reader import Found
from tidemark.recovery.candidates import changelog_fault, end_after, level_batches
from tidemark.recovery.copy_source import find_copies
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.start_plan import Fresh, Refuse, committed_progress_of, witnessed
from tidemark.registry.description import Description
from tidemark.registry.reader import named, recorded
from tidemark.registry.topic_identities import LostTopic, TopicUse, format_lost, topics_in_use
from tidemark.settings import Settings
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class ApplicationState:
    """The state of an application before a change. `context` works with it as it was left.

    `committed` holds the tasks that have committed.
    """

    description: Description
    context: OperationContext
    found: Mapping[TaskId, Found]
    committed: Mapping[TaskId, CommittedProgress]

    @property
    def instances(self) -> set[int]:
        """The instances that committed last."""
        return {each.facts.record.instance for each in self.found.values() if each.facts.record is not None}

    @property
    def committed_offsets(self) -> dict[TopicPartition, ClientPartition | None]:
        """The committed offset of every source partition with its metadata; None where there is none."""
        return {place: at for found in self.found.values() for place, at in found.facts.committed_offsets.items()}

    @property
    def lost(self) -> dict[str, LostTopic]:
        """Topics that were deleted, or deleted and created again, since the last commit, by name."""
        return {topic: each for found in self.found.values() for topic, each in found.facts.lost.items()}

    @property
    def state_topic_ids(self) -> dict[str, str]:
        """The ids of the topics that hold state, that the last commits knew and that were not lost."""
        known, lost = self.description.topic_ids, self.lost
        uses = topics_in_use(self.context.plan)
        return {t: known[t] for t, use in uses.items() if use.is_state and t in known and t not in lost}

    def followed(self, task: TaskId) -> CommittedProgress:
        """Return the progress from which a change continues that leaves the stores as they are.

        If the last commit is also of such a change, the new record takes its place: the stores are still of the batch
        before, and so stay up to date.
        """
        at = self.committed[task]
        return replace(at, batch=min(level_batches(self.found[task].facts.record, at)))

    def damaged_changelogs(self) -> frozenset[str]:
        """Return the changelogs from which no store could be rebuilt.

        They were deleted, created again or truncated, or have lost their beginning.
        """
        damaged: set[str] = set()
        for each in self.found.values():
            evidence = self.context.evidence.witnesses.evidence(each.facts, each.copies)
            damaged |= {s.changelog.topic for s in evidence.stores if changelog_fault(evidence, s)}
        return frozenset(damaged)

    def written_ends(self, task: TaskId, changelogs: Collection[str]) -> dict[TopicPartition, int]:
        """Return the ends of a task's changelogs after its last commit, as the commit record says, whatever they hold now."""
        record = self.found[task].facts.record
        if record is None:
            return {}
        ends = {place: end_after(record, place) for place in (TopicPartition(t, task.partition) for t in changelogs)}
        return {place: end for place, end in ends.items() if end is not None}

    @property
    def waiting(self) -> dict[str, int]:
        """The number of source offsets that are not committed yet, by topic."""
        waiting: dict[str, int] = {}
        for task, at in self.committed.items():
            for topic, offset in at.next_offsets.items():
                end = self.found[task].facts.sources[TopicPartition(topic, task.partition)].end
                waiting[topic] = waiting.get(topic, 0) + end - offset
        return waiting


def context_of(
    plan: TopologyPlan, settings: Settings, clock: Callable[[], int], found: Description | None = None
) -> OperationContext:
    """Return the context of a plan with its generations, with all places of copies.

    `found` is as in `OperationContext.exactly`. Raises `InvalidSettings`.
    """
    return OperationContext.exactly(plan, settings, copy_sources(plan, settings), clock, found)


def described(clients: Clients, plan: TopologyPlan) -> Description:
    """Return the description that the last commit left. Raises `StartRefused` for an application that has never committed.

    Blocks.
    """
    app = plan.application_id
    counts = partition_counts(clients.admin, clients.settings)
    found = recorded(clients.settings, clients.admin, plan, counts)
    if found is None:
        raise StartRefused(f"{app} has never committed anything: there is nothing to change, start it")
    return found


def read_application_state(clients: Clients, plan: TopologyPlan, *, may_be_gone: bool = False) -> ApplicationState:
    """Read the state of an application from Kafka. Blocks. Raises `StartRefused` if it is contradictory, or if there is none.

    Raises `PreflightFailed` if a source or sink of `plan`, the module's, does not exist.

    With `may_be_gone`, the sources may have deleted the next record to read, and topics may have been deleted or
    created again.
    """
    description = described(clients, plan)
    own = context_of(description.skeleton(), clients.settings, clients.clock, description)
    witnesses = own.evidence.witnesses
    lost = witnesses.identities.lost(own.plan)
    if lost and (not may_be_gone or any(each.use is TopicUse.COMMITS for each in lost.values())):
        raise StartRefused(format_lost(plan.application_id, lost.values()))
    existing = partition_counts(clients.admin, clients.settings)
    _require_user_topics(plan, existing, lost)
    # Partitions that were added since belong to no task yet.
    counts = {**existing, **description.partitions}
    if lost:
        counts = _with_lost_topics(named(plan, description), counts)
    tasks = task_ids(own.plan, counts)
    copies = find_copies(own.evidence.copies, tasks)
    found = {task: Found(facts, copies[task]) for task, facts in witnesses.facts(tasks, lost).items()}
    committed: dict[TaskId, CommittedProgress] = {}
    for task, each in found.items():
        at = (witnessed if may_be_gone else committed_progress_of)(witnesses.evidence(each.facts, {}))
        if isinstance(at, Refuse):
            raise StartRefused(f"{at.reason}; {at.remedy}")
        if not isinstance(at, Fresh):
            committed[task] = at
    return ApplicationState(description, own, found, committed)


def _require_user_topics(plan: TopologyPlan, existing: Collection[str], lost: Collection[str]) -> None:
    """Require the sources and sinks, except those that are known to be lost, which each change judges for itself."""
    if missing := [topic for topic in user_topics(plan) if topic not in existing and topic not in lost]:
        raise PreflightFailed(
            f"{plan.application_id}: topics {', '.join(missing)} do not exist; nothing was changed: create them, or let "
            "`tidemark topics create NAME` do it, then run the command again"
        )


def _with_lost_topics(plan: TopologyPlan, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts with those of deleted repartition topics: as many partitions as their readers' changelogs have."""
    found = dict(counts)
    for subtopology in plan.subtopologies:
        changelogs = [changelog_of(plan.application_id, s) for s in subtopology.stores if s.is_logged]
        known = [counts[topic] for topic in changelogs if topic in counts]
        if known:
            found |= {topic: max(known) for topic in subtopology.source_topics if topic not in counts}
    return with_repartition_topics(plan, found)


def output_ends(
    clients: Clients, plan: TopologyPlan, tasks: list[TaskId], damaged: Collection[str] = ()
) -> dict[TopicPartition, int]:
    """Return the read_uncommitted ends of sinks, dead letters and the tasks' changelogs, as a commit record holds them.

    `damaged` changelogs are left out. Blocks.
    """
    places = format_partitions(plan, partition_counts(clients.admin, clients.settings))
    places += [
        TopicPartition(changelog_of(plan.application_id, spec), task.partition)
        for task in tasks
        for spec in plan.subtopologies[task.subtopology].stores
        if spec.is_logged and changelog_of(plan.application_id, spec) not in damaged
    ]
    return clients.ends.of(list(dict.fromkeys(places)))
