"""Change of the number of tasks: sources go through repartition topics, state moves by key to its new task.

See `docs/rescale.md` and invariant: rescale. Steps, with all instances fenced: create the topics of the next routing;
send on the unread records between sub-topologies; build and verify every store, write each key to the changelog
partition of the task that owns it from now on, and compare; then one transaction with the new description, a commit
record of kind rescale and the offsets of every task. Before that transaction nothing has changed, after it everything
has: a second run begins again or finds that all is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.partitioner import partitions_of
from tidemark.kafka.topic_config import repartition_config
from tidemark.kafka.topics import TopicSpec, partition_counts
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.commit import Switch, exclusive_access, fenced_application_state
from tidemark.operations.change.current_state import (
    ApplicationState,
    context_of,
    described,
    output_ends,
    read_application_state,
)
from tidemark.operations.change.in_flight import moved_records, records_between, send_on
from tidemark.operations.change.key_owner import Owner, owner_of
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.operations.change.reset_plan import require_fixed_tables
from tidemark.operations.change.store_copy import Copier, KeyHeldTwice, OldState, Place, live_items
from tidemark.operations.clients import Clients
from tidemark.recovery.evidence import CommittedProgress
from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.registry.generations import next_generation
from tidemark.registry.reader import named, require_same
from tidemark.registry.routing import next_routing, require_routable
from tidemark.restore.listener import RestoreListener
from tidemark.settings import Settings
from tidemark.stores.rocksdb import opened
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreKind, TopologyPlan

RESCALES_FOLDER = ".rescales"

_NEW_BEGINNING = (
    "a source has grown: `tidemark reset run NAME --to latest --state empty` begins again, with its present partitions and "
    "without its earlier records"
)
"""The remedy when a source has grown: then its records from before are in other partitions, so no reset can read them again."""


@dataclass(frozen=True)
class Rescale:
    """One rescale of the application that `plan`, its module's, describes, to `tasks` tasks per sub-topology."""

    plan: TopologyPlan
    settings: Settings
    clock: Callable[[], int]
    tasks: int
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]

    def show(self) -> RescalePlan:
        """Return what a rescale would do now. The application may run. Raises `StartRefused`."""
        return self._planned(read_application_state(Clients.of(self.settings, self.clock), self.plan))

    def run(self, approve: Callable[[RescalePlan], bool]) -> bool:
        """Plan with all instances fenced, ask, do it. Returns False if `approve` returned False. Blocks.

        If the rescale was committed before, only removes old folders, without asking. Raises `TaskLocked` or
        `PreflightFailed` while the application runs, `StartRefused`, and what a commit raises: after `OutcomeUnknown`,
        run it again to find out.
        """
        clients = Clients.of(self.settings, self.clock)
        access = exclusive_access(clients, self.plan, Command.RESCALE, RESCALES_FOLDER, self.report)
        with access as (producer, folder, held):
            if self._is_done(clients):
                self.report(f"{self.plan.application_id} already has {self.tasks} tasks")
                self._forget_folders(held)
                return True
            if not self._run(clients, producer, folder, approve):
                return False
            self._forget_folders(held)
            return True

    def _is_done(self, clients: Clients) -> bool:
        found, counts = described(clients, self.plan), partition_counts(clients.admin, self.settings)
        if not found.routing:
            return False
        return {counts.get(found.routed_topic(t)) for s in found.subtopologies for t in s.sources} == {self.tasks}

    def _run(
        self, clients: Clients, producer: BatchProducer, folder: Path, approve: Callable[[RescalePlan], bool]
    ) -> bool:
        before = fenced_application_state(clients, self.plan)
        plan = self._planned(before)
        if not approve(plan):
            return False
        with NewTopics(clients.admin, self.settings, self.report) as topics:
            description = self._new_topics(clients, before, topics)
            own = context_of(named(self.plan, description), self.settings, self.clock)
            self.probe("topics-made")
            self._send_on(before, description, producer)
            old = OldState(before.context, folder / "old", self.listener, self.probe, self.report)
            after = self._after(before, description, own.clients)
            counts = self._spread(before, after, old, Copier(own, producer, folder / "new", self.probe))
            self.probe("copied")
            records = moved_records(
                CommitKind.RESCALE,
                own.plan,
                after,
                counts,
                output_ends(own.clients, own.plan, list(after)),
                self.clock(),
            )
            gone = [task for task in before.committed if task not in after]
            Switch(own.clients, own.plan, before, producer, self.probe, "rescale", topics).commit(
                records, description, gone
            )
        return True

    def _planned(self, before: ApplicationState) -> RescalePlan:
        description, counts = before.description, partition_counts(before.context.clients.admin, self.settings)
        require_same(description, self.plan, counts)
        has_grown = self._has_grown(description, counts)
        if has_grown:
            require_fixed_tables(description, [t for t, n in description.partitions.items() if counts.get(t, n) > n])
        try:
            self._require_movable(description, has_grown)
        except StartRefused as error:
            if not has_grown:
                raise
            raise StartRefused(f"{error}; {_NEW_BEGINNING}") from error
        missing = [task for task in before.found if task not in before.committed]
        if missing:
            raise StartRefused(
                f"task {missing[0]} has never committed anything: let the application run until it has committed"
            )
        tasks = {number: self._tasks(before, number) for number in range(len(description.subtopologies))}
        if not description.routing and set(tasks.values()) == {self.tasks} and not has_grown:
            raise StartRefused(f"{self.plan.application_id} already has {self.tasks} tasks: there is nothing to do")
        tasks_ms = [at.stream_times.task_ms for at in before.committed.values()]
        times = [time_ms for time_ms in tasks_ms if time_ms != NO_STREAM_TIME]
        left = [changelog_of(description.application_id, store.spec) for store in description.stores.values()]
        left += [description.routed_topic(t) for t in description.own_topics]
        return RescalePlan(
            description.application_id, self.tasks, tasks, {t: counts[t] for t in description.user_topics},
            tuple(description.stores), self._unread(before), before.waiting,
            max(times) - min(times) if times else 0, tuple(left),
        )  # fmt: skip

    def _require_movable(self, description: Description, has_grown: bool) -> None:
        """Raise `StartRefused` if a source cannot be routed, or the contents of a store cannot be moved to other tasks."""
        require_routable(self.plan)
        for name, store in description.stores.items():
            owner_of(store)
            if not store.spec.is_logged:
                raise StartRefused(f"store {name} is not logged, so its contents are not known and cannot be moved")
            if store.spec.source_topic is not None:
                # An upgrade is refused while a source has more partitions.
                drop = (
                    ": leave optimised=True out of the topology, apply that with `tidemark upgrade run NAME --drop "
                    f"{name}`, which empties the table, then rescale"
                )
                raise StartRefused(
                    f"store {name} has its source topic {store.spec.source_topic} as changelog, whose number of partitions "
                    f"is fixed{'' if has_grown else drop}"
                )

    def _has_grown(self, description: Description, counts: Mapping[str, int]) -> bool:
        """Return whether tasks that read a source directly lack some of its partitions."""
        return not description.routing and any(
            counts.get(topic, before) != before for topic, before in description.partitions.items()
        )

    def _tasks(self, before: ApplicationState, number: int) -> int:
        return sum(task.subtopology == number for task in before.committed)

    def _unread(self, before: ApplicationState) -> dict[str, int]:
        """Count the committed records between sub-topologies that were not read, by the topic's present name."""
        unread: dict[str, int] = {}
        for place, offset, end in self._between(before):
            found = records_between(before.context.clients, place, offset, end)
            unread[place.topic] = unread.get(place.topic, 0) + found
        return unread

    def _between(self, before: ApplicationState) -> list[tuple[TopicPartition, int, int]]:
        """Return the partitions of the application's own topics, with next offset and end."""
        description = before.description
        topics = {description.routed_topic(topic) for topic in description.own_topics}
        return [
            (place, at.next_offsets[topic], before.found[task].facts.sources[place].end)
            for task, at in before.committed.items()
            for topic in at.next_offsets
            if topic in topics
            for place in [TopicPartition(topic, task.partition)]
        ]

    def _new_topics(self, clients: Clients, before: ApplicationState, made_topics: NewTopics) -> Description:
        """Create the new topics, and return the description from now on."""
        old, existing = before.description, partition_counts(clients.admin, self.settings)
        app = old.application_id
        generations = {name: next_generation(app, name, existing, old.last_generation(name)) for name in old.stores}
        made = describe_state(with_generations(self.plan, generations), existing).continuing(old)
        made = replace(made, routing=next_routing(app, old.internal, existing, old.routing))
        self.report("creating the topics of the new tasks")
        topics = [made.routed_topic(topic) for s in made.subtopologies for topic in s.sources]
        made_topics.create(
            [
                TopicSpec(topic, self.tasks, repartition_config()).tolerating(self.plan.tolerated_broker_failures)
                for topic in topics
            ]
        )
        made_topics.ensure(named(self.plan, made), before.state_topic_ids)
        return made

    def _send_on(self, before: ApplicationState, made: Description, producer: BatchProducer) -> None:
        """Send the unread records between sub-topologies to the topics that replace the old ones."""
        old = before.description
        names = {old.routed_topic(topic): made.routed_topic(topic) for topic in old.own_topics}
        for place, offset, end in self._between(before):
            sent = send_on(before.context.clients, producer, place, offset, end, names[place.topic])
            self.report(f"{place}: {sent} unread records sent on to {names[place.topic]}")
            self.probe("sent-on")

    def _after(self, before: ApplicationState, made: Description, clients: Clients) -> dict[TaskId, CommittedProgress]:
        """Return where every task continues: tasks at the beginning of their new topics, routers at the committed offsets."""
        after: dict[TaskId, CommittedProgress] = {}
        batch = max(at.batch for at in before.committed.values())
        for number, state in enumerate(made.subtopologies):
            held = [at for task, at in before.committed.items() if task.subtopology == number]
            windows = [store.name for store in state.stores if store.spec.kind is StoreKind.WINDOW]
            stream_times = StreamTimes.newest((at.stream_times for at in held), windows)
            offsets = {made.routed_topic(topic): 0 for topic in state.sources}
            after |= {TaskId(number, n): CommittedProgress(offsets, batch, stream_times) for n in range(self.tasks)}
        read = {
            TopicPartition(topic, task.partition): offset
            for task, at in before.committed.items()
            for topic, offset in at.next_offsets.items()
        }
        counts = partition_counts(clients.admin, self.settings)
        for place, topic in enumerate(made.user_topics):
            partitions = [TopicPartition(topic, n) for n in range(counts[topic])]
            # A partition that was added later is read from its beginning.
            lows = clients.ends.beginnings([p for p in partitions if p not in read])
            for partition in partitions:
                offset = read.get(partition, lows.get(partition, 0))
                task = TaskId(len(made.subtopologies) + place, partition.partition)
                after[task] = CommittedProgress({topic: offset}, batch, StreamTimes.none())
        return after

    def _spread(
        self, before: ApplicationState, after: Mapping[TaskId, CommittedProgress], old: OldState, copier: Copier
    ) -> dict[TaskId, dict[str, int]]:
        """Write every key to the changelog of the task that owns it now.

        Returns the records written, per task and changelog.
        """
        specs = {spec.name: spec for spec in copier.context.plan.stores}
        partitions = partition_counts(before.context.clients.admin, self.settings)
        has_grown = self._has_grown(before.description, partitions)
        counts: dict[TaskId, dict[str, int]] = {}
        for name, held in before.description.stores.items():
            number, spec = before.description.subtopology_of(name), specs[name]
            place = _placed_by(owner_of(held), self.tasks)
            new = [TaskId(number, n) for n in range(self.tasks)]
            topic = copier.context.evidence.witnesses.changelog_of(new[0], spec).topic
            self.report(f"writing {name} to {topic}")
            with ExitStack() as stores:
                loaded = {task.partition: stores.enter_context(copier.store(task, spec)) for task in new}
                former = [task for task in before.committed if task.subtopology == number]
                for task in former:
                    folder = old.build(before.found[task], held.spec)
                    with opened(folder) as store:
                        # Expiry is judged by the latest stream time of all tasks, because every task continues with it.
                        items = live_items(store, held.spec, after[new[0]])
                        try:
                            sent = copier.spread(items, spec, topic, loaded, place)
                        except KeyHeldTwice as error:
                            earlier = former[: former.index(task)]
                            raise _held_twice(name, task, earlier, error.records, has_grown=has_grown) from error
                    for partition, records in sent.items():
                        of_task = counts.setdefault(TaskId(number, partition), {})
                        of_task[topic] = of_task.get(topic, 0) + records
                    shutil.rmtree(folder)
            for task in new:
                copier.verify(task, spec, after[task])
        return counts

    def _forget_folders(self, held: Sequence[Path]) -> None:
        """Delete the folders of tasks that no longer exist.

        The others get new contents at the next start, which notices the change.
        """
        for holder in held:
            for folder in holder.glob("[0-9]*_[0-9]*"):
                task = TaskId.parse(folder.name)
                if task.subtopology < len(self.plan.subtopologies) and task.partition >= self.tasks:
                    shutil.rmtree(folder, ignore_errors=True)
        self.probe("folders-forgotten")


def _held_twice(store: str, task: TaskId, earlier: Sequence[TaskId], key: str, *, has_grown: bool) -> StartRefused:
    others = " or ".join(map(str, earlier))
    remedy = (
        "`tidemark reset run NAME --to earliest --state empty` and then, before the application starts, this command compute "
        "the state from the records that the sources still hold"
    )
    if has_grown:
        remedy = _NEW_BEGINNING
    return StartRefused(
        f"store {store}: task {task} and task {others} hold the same key, of which one task can keep only one value, because "
        f"its records were in several partitions of a source; nothing was changed: {remedy}",
        records=key,
    )


def _placed_by(owner: Owner, tasks: int) -> Place:
    return lambda keys: partitions_of(owner(keys), tasks)
