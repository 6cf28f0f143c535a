"""Reset of an application's offsets: all instances stopped, one transaction with offsets and commit records.

See invariant: commit records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topic_config import repartition_config
from tidemark.kafka.topics import TopicSpec, partition_counts, task_ids, with_repartition_topics
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.commit import Switch, exclusive_access, fenced_application_state
from tidemark.operations.change.current_state import ApplicationState, context_of, output_ends, read_application_state
from tidemark.operations.change.in_flight import moved_records
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.change.reset_plan import (
    ResetPlan,
    SourceReset,
    require_fixed_tables,
    require_kept,
    target_offsets,
)
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.store_copy import Copier, OldState, live_items
from tidemark.operations.clients import Clients
from tidemark.recovery.evidence import CommittedProgress, Watermarks
from tidemark.registry.computations import MOVED
from tidemark.registry.description import Description
from tidemark.registry.generations import with_new_changelogs
from tidemark.registry.reader import named, require_partitions, require_same
from tidemark.registry.topic_identities import CHANGELOG_REMEDY, TopicUse
from tidemark.restore.listener import RestoreListener
from tidemark.settings import Settings
from tidemark.stores.rocksdb import opened
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import TopologyPlan

RESETS_FOLDER = ".resets"


@dataclass(frozen=True)
class Reset:
    """One reset of the application that `plan` describes.

    `given` are the offsets of `--to offsets`, `at_ms` is that of `--to time`. A reset that was committed at `since_ms` (epoch
    milliseconds) or later is this one, in an earlier try, although the end of the sources is another one by now.
    """

    plan: TopologyPlan
    settings: Settings
    clock: Callable[[], int]
    to: ResetTo
    state: StateAfter
    given: Mapping[TopicPartition, int]
    at_ms: int | None
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]
    since_ms: int | None = None

    def show(self) -> ResetPlan:
        """Return what a reset would do now. The application may run. Raises `StartRefused`."""
        return self._planned(read_application_state(Clients.of(self.settings, self.clock), self.plan, may_be_gone=True))

    def run(self, approve: Callable[[ResetPlan], bool]) -> bool:
        """Plan with all instances fenced, ask, do it. Returns False if `approve` returned False. Blocks.

        If it is killed before the commit, nothing has changed. After the commit everything has, and a second run finds
        that, unless the application has run since. Raises `TaskLocked` or `PreflightFailed` while the application runs,
        `StartRefused`, and what a commit raises.
        """
        clients = Clients.of(self.settings, self.clock)
        access = exclusive_access(clients, self.plan, Command.RESET, RESETS_FOLDER, self.report)
        with access as (producer, folder, _):
            return self._run(clients, producer, folder, approve)

    def _run(
        self, clients: Clients, producer: BatchProducer, folder: Path, approve: Callable[[ResetPlan], bool]
    ) -> bool:
        before = fenced_application_state(clients, self.plan, may_be_gone=True)
        plan = self._planned(before)
        if self._is_done(before, plan):
            self.report(f"{plan.application_id} has already been reset, and has not run since")
            return True
        if plan.changes_nothing and self.to is ResetTo.LATEST:
            self.report(f"{plan.application_id} has processed every record: there is nothing to skip")
            return True
        if plan.changes_nothing:
            raise StartRefused(f"{plan.application_id} is already at these offsets: there is nothing to reset")
        if not approve(plan):
            return False
        with NewTopics(clients.admin, self.settings, self.report) as topics:
            description = self._renewed(before, plan, topics)
            renewed = named(self.plan, description)
            own = context_of(renewed, self.settings, self.clock)
            old = OldState(before.context, folder / "old", self.listener, self.probe, self.report, may_be_gone=True)
            counts = self._copy(before, plan, old, Copier(own, producer, folder / "new", self.probe))
            self.probe("copied")
            progress = {**before.committed, **self._added(before, description.partitions)}
            after = self._after(progress, plan)
            records = moved_records(
                CommitKind.RESET,
                renewed,
                after,
                counts,
                output_ends(own.clients, renewed, list(after)),
                self.clock(),
                progress,
            )
            Switch(own.clients, renewed, before, producer, self.probe, "reset", topics).commit(records, description)
        return True

    def _is_done(self, before: ApplicationState, plan: ResetPlan) -> bool:
        """Whether the last commit is this reset, or one with the same result."""
        records = [before.found[task].facts.record for task in before.committed]
        resets = [record for record in records if record is not None and record.kind is CommitKind.RESET]
        if len(resets) < len(records):
            return False
        if self.since_ms is not None and all(record.commit_time_ms >= self.since_ms for record in resets):
            return True
        return (
            plan.moves_nothing
            and not plan.accepted
            and not plan.grown
            and (self.state is StateAfter.KEEP or _is_empty(before))
        )

    def _planned(self, before: ApplicationState) -> ResetPlan:
        for topic, each in before.lost.items():
            if each.use is TopicUse.SOURCE and each.found_id is None:
                raise StartRefused(f"source topic {topic} does not exist: create it first")
        partitions = partition_counts(before.context.clients.admin, self.settings)
        require_same(before.description, self.plan, partitions)
        # Without state it does not matter which task had a key, but its earlier records are in another partition.
        is_new_beginning = self.state is StateAfter.EMPTY and self.to is not ResetTo.EARLIEST
        require_partitions(before.description, partitions, may_have_more=is_new_beginning)
        own = named(self.plan, before.description)
        keeps = self.state is StateAfter.KEEP
        if keeps:
            require_kept(own.stores)
        added = self._added(before, partitions)
        grown = sorted({topic for at in added.values() for topic in at.next_offsets})
        require_fixed_tables(before.description, grown)
        if grown:
            # Topics that are joined need the same number of partitions.
            task_ids(own, with_repartition_topics(own, partitions))
        internal = set(own.repartition_topics)
        marks = {p: m for task in before.committed for p, m in before.found[task].facts.sources.items()}
        marks |= self._added_watermarks(before, added)
        wanted = target_offsets(
            self.to,
            {p: m for p, m in marks.items() if p.topic not in internal},
            self.given,
            self.at_ms,
            before.context.clients.ends,
        )
        sources: list[SourceReset] = []
        for task, at in {**before.committed, **added}.items():
            for topic, offset in at.next_offsets.items():
                place = TopicPartition(topic, task.partition)
                # Nothing was read of a topic that was created again.
                stays = marks[place].low if topic in before.lost else offset
                stays = min(max(stays, marks[place].low), marks[place].end)
                stays = marks[place].end if self.state is StateAfter.EMPTY else stays
                asked = wanted.get(place, stays)
                sources.append(SourceReset(place, offset, max(asked, marks[place].low), topic in internal, asked))
        stores = before.description.stores
        # A store that is ahead of the offsets is refused at a start, so it is written to a new changelog.
        goes_back = any(source.again for source in sources)
        damaged = before.damaged_changelogs()
        if damaged and keeps:
            raise StartRefused(f"{', '.join(sorted(damaged))}: deleted, created again or truncated; {CHANGELOG_REMEDY}")
        return ResetPlan(
            before.description.application_id,
            self.to,
            self.state,
            tuple(sources),
            tuple(name for name, store in stores.items() if store.spec.is_logged) if goes_back and keeps else (),
            () if keeps else tuple(stores),
            tuple(name for name, store in stores.items() if store.window),
            tuple(sorted({*before.lost, *damaged})),
            tuple(grown),
        )

    def _renewed(self, before: ApplicationState, plan: ResetPlan, topics: NewTopics) -> Description:
        """Create the changelogs that the stores have from now on, and return the description with them."""
        self._make_lost_topics(before, topics)
        existing = partition_counts(before.context.clients.admin, self.settings)
        renewed = with_new_changelogs(self.plan, before.description, (*plan.rewritten, *plan.emptied), existing)
        if self.state is StateAfter.KEEP:
            reasons = {**_moved_stores(before.description, plan), **renewed.not_recomputable}
            renewed = replace(renewed, not_recomputable=reasons)
        topics.ensure(named(self.plan, renewed), before.state_topic_ids)
        self.probe("topics-made")
        return renewed

    def _make_lost_topics(self, before: ApplicationState, topics: NewTopics) -> None:
        """Create the repartition topics that were deleted, with a partition for each task that reads them."""
        tasks = [
            (task, topic) for task, each in before.found.items() for topic in {p.topic for p in each.facts.sources}
        ]
        specs = [
            TopicSpec(topic, sum(read == topic for _, read in tasks), repartition_config())
            for topic, each in before.lost.items()
            if each.use is TopicUse.REPARTITION and each.found_id is None
        ]
        topics.create([spec.tolerating(self.plan.tolerated_broker_failures) for spec in specs])

    def _copy(
        self, before: ApplicationState, plan: ResetPlan, old: OldState, copier: Copier
    ) -> dict[TaskId, dict[str, int]]:
        """Copy the stores that are rewritten. Returns the records written, per task and changelog."""
        specs = {spec.name: spec for spec in copier.context.plan.stores}
        counts: dict[TaskId, dict[str, int]] = {}
        for name in plan.rewritten:
            held = before.description.stores[name].spec
            if not held.is_logged or held.source_topic is not None:
                continue
            number = before.description.subtopology_of(name)
            for task in (task for task in before.committed if task.subtopology == number):
                at, spec = before.committed[task], specs[name]
                changelog = copier.context.evidence.witnesses.changelog_of(task, spec)
                self.report(f"writing {task}/{name} to {changelog}")
                with opened(old.build(before.found[task], held)) as store, copier.store(task, spec) as loaded:
                    counts.setdefault(task, {})[changelog.topic] = copier.copy(
                        live_items(store, held, at), spec, changelog, loaded
                    )
                copier.verify(task, spec, at)
        return counts

    def _added(self, before: ApplicationState, partitions: Mapping[str, int]) -> dict[TaskId, CommittedProgress]:
        """Return the tasks of partitions that were added since the last commit, at the first record of each partition.

        Routers are left out, because they begin there by themselves. `partitions` are those of the sources now.
        """
        old, batch = before.description, max((at.batch for at in before.committed.values()), default=-1)
        if old.routing:
            return {}
        places = {
            TopicPartition(topic, partition): TaskId(number, partition)
            for number, state in enumerate(old.subtopologies)
            for topic in state.sources
            for partition in range(old.partitions.get(topic, 0), partitions.get(topic, 0))
            if topic in old.partitions
        }
        offsets: dict[TaskId, dict[str, int]] = {}
        for place, low in before.context.clients.ends.beginnings(list(places)).items():
            offsets.setdefault(places[place], {})[place.topic] = low
        return {task: CommittedProgress(lows, batch, StreamTimes.none()) for task, lows in offsets.items()}

    def _added_watermarks(
        self, before: ApplicationState, added: Mapping[TaskId, CommittedProgress]
    ) -> dict[TopicPartition, Watermarks]:
        lows = {
            TopicPartition(topic, task.partition): low
            for task, at in added.items()
            for topic, low in at.next_offsets.items()
        }
        ends = before.context.clients.ends.of(list(lows))
        return {place: Watermarks(low, ends[place]) for place, low in lows.items()}

    def _after(self, progress: Mapping[TaskId, CommittedProgress], plan: ResetPlan) -> dict[TaskId, CommittedProgress]:
        to = {source.partition: source.to_offset for source in plan.sources}
        return {
            task: replace(
                at,
                next_offsets={topic: to[TopicPartition(topic, task.partition)] for topic in at.next_offsets},
                stream_times=StreamTimes.none() if self.state is StateAfter.EMPTY else at.stream_times,
            )
            for task, at in progress.items()
        }


def _moved_stores(description: Description, plan: ResetPlan) -> dict[str, str]:
    """Return the stores that the skipped or repeated records would have reached, with why they cannot be computed again."""
    moved = {source.partition.topic for source in plan.sources if source.again or source.skipped}
    return {
        store.name: MOVED
        for each in description.subtopologies
        if moved & {description.routed_topic(topic) for topic in each.sources}
        for store in each.stores
    }


def _is_empty(before: ApplicationState) -> bool:
    """Return whether stream time and every changelog are as a reset to an empty state leaves them.

    Stores without a changelog of their own are left out: no start uses an unlogged store that is older than the last commit,
    and a table that its source topic keeps has the records before the committed offset.
    """
    return all(
        at.stream_times == StreamTimes.none()
        and all(
            marks.low == marks.end
            for name, marks in before.found[task].facts.changelogs.items()
            if before.description.stores[name].spec.has_changelog
        )
        for task, at in before.committed.items()
    )
