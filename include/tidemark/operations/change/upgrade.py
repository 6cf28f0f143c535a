"""Upgrade from one version of a topology to another, with the state that carries over (`docs/upgrade.md`).

Steps, with all instances fenced: read what the last version kept; build and verify the stores that are copied; write
them in their new form to changelogs that nothing refers to yet, and compare; then one transaction with the new
description, a commit record of kind upgrade and the offsets of every task. Before that transaction nothing has changed,
after it everything has: a second run, after a kill at any point, begins again or finds that all is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind
from tidemark.failpoint import Probe
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.preflight import uncompacted_tables
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.commit import Switch, exclusive_access, fenced_application_state
from tidemark.operations.change.current_state import (
    ApplicationState,
    context_of,
    described,
    output_ends,
    read_application_state,
)
from tidemark.operations.change.in_flight import moved_records, records_between
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.change.store_copy import Copier, OldState, keys_of, live_items
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.operations.change.value_conversion import converter
from tidemark.operations.clients import Clients
from tidemark.operations.disk_space import require_room_to_upgrade
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.restore_plan import StoreRestore
from tidemark.registry.compatibility import (
    StoreChange,
    StoreChangeKind,
    carry,
    new_columns,
    obstacles,
    unwritten_columns,
)
from tidemark.registry.computations import BEGAN_LATER, CARRIED_OVER
from tidemark.registry.declarations import parse_declared
from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.registry.generations import next_generation
from tidemark.registry.reader import named, require_partitions
from tidemark.registry.routing import unroutable
from tidemark.restore.listener import RestoreListener
from tidemark.settings import Settings
from tidemark.stores.directory import CORRUPT_STORE, RESTORING_STORE, STORES_FOLDER
from tidemark.stores.rocksdb import opened
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreSpec, TopologyPlan

CHANGES_FOLDER = ".changes"


@dataclass(frozen=True)
class Change:
    """Both sides of an upgrade."""

    before: ApplicationState
    new: Description
    changes: tuple[StoreChange, ...]

    @property
    def old(self) -> Description:
        """The description that the previous version left."""
        return self.before.description

    @property
    def after(self) -> dict[TaskId, CommittedProgress]:
        """The progress with which every task continues: as before, with stream times under the present names of the stores."""
        names = {each.was: each.store for each in self.changes if each.was and each.store}
        return {
            task: replace(self.before.followed(task), stream_times=at.stream_times.renamed(names))
            for task, at in self.before.committed.items()
        }

    def stores(self, fates: Sequence[StoreChangeKind]) -> list[tuple[TaskId, StoreChange, StoreSpec]]:
        """Return old stores with a changelog of their own that have one of these fates, of every task."""
        chosen: list[tuple[TaskId, StoreChange, StoreSpec]] = []
        for change in self.changes:
            if change.change_kind not in fates or not change.was:
                continue
            spec = self.old.stores[change.was].spec
            if spec.has_changelog:
                number = self.old.subtopology_of(change.was)
                chosen += [(task, change, spec) for task in self.before.committed if task.subtopology == number]
        return chosen


@dataclass(frozen=True)
class Upgrade:
    """One upgrade to `plan`, the module's. `renames`, `drops` and `adds` are unparsed, see `declared`."""

    plan: TopologyPlan
    settings: Settings
    clock: Callable[[], int]
    renames: Sequence[str]
    drops: Sequence[str]
    adds: Sequence[str]
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]

    def show(self, folder: Path) -> UpgradePlan:
        """Return what an upgrade would do now. The application may run. Builds the stores whose keys it counts in `folder`.

        Blocks. Raises `StartRefused`, and `PreflightFailed` if there is too little space.
        """
        clients = Clients.of(self.settings, self.clock)
        return self._planned(self._change(clients, read_application_state(clients, self.plan)), folder, {})

    def run(self, approve: Callable[[UpgradePlan], bool]) -> bool:
        """Plan with all instances fenced, ask, do it. Returns False if `approve` returned False. Blocks.

        If the upgrade was committed before, only removes old folders, without asking. With declarations, that holds only
        while it is the last commit; later they would be ignored, so they are refused. Raises `TaskLocked` or
        `PreflightFailed` while the application runs, `StartRefused`, and what a commit raises: after `OutcomeUnknown`,
        run it again to find out.
        """
        clients = Clients.of(self.settings, self.clock)
        access = exclusive_access(clients, self.plan, Command.UPGRADE, CHANGES_FOLDER, self.report)
        with access as (producer, folder, held):
            if self._is_done(clients) and (not self._has_declarations or self._is_last_commit(clients)):
                self.report(f"{self.plan.application_id} has been upgraded to version {self.plan.version} already")
                self._forget_folders(described(clients, self.plan), held)
                return True
            return self._run(clients, producer, folder, held, approve)

    def _run(
        self,
        clients: Clients,
        producer: BatchProducer,
        folder: Path,
        held: Sequence[Path],
        approve: Callable[[UpgradePlan], bool],
    ) -> bool:
        change = self._change(clients, fenced_application_state(clients, self.plan))
        built: dict[tuple[TaskId, str], Path] = {}
        plan = self._planned(change, folder / "old", built)
        plan.require_possible()
        if not approve(plan):
            return False
        with NewTopics(clients.admin, self.settings, self.report) as topics:
            description = self._new_topics(clients, change, topics)
            settled = named(self.plan, description)
            own = context_of(settled, self.settings, self.clock)
            self.probe("topics-made")
            counts = self._copy(change, built, Copier(own, producer, folder / "new", self.probe))
            self.probe("copied")
            committed = change.after
            ends = output_ends(own.clients, settled, list(committed))
            records = moved_records(CommitKind.UPGRADE, settled, committed, counts, ends, self.clock())
            Switch(own.clients, settled, change.before, producer, self.probe, "upgrade", topics).commit(
                records, description
            )
        self._forget_folders(description, held)
        return True

    def _is_done(self, clients: Clients) -> bool:
        found = described(clients, self.plan)
        own = describe_state(self.plan, partition_counts(clients.admin, self.settings))
        return found.version == own.version and found.keeps_the_same(own) and not unwritten_columns(found, own)

    @property
    def _has_declarations(self) -> bool:
        return bool(self.renames or self.drops or self.adds)

    def _is_last_commit(self, clients: Clients) -> bool:
        """Return whether the last commit of every task is an upgrade to this version."""
        state = read_application_state(clients, self.plan)
        records = [state.found[task].facts.record for task in state.committed]
        last = {(record.kind, record.topology_version) for record in records if record is not None}
        return last == {(CommitKind.UPGRADE, self.plan.version)}

    def _change(self, clients: Clients, before: ApplicationState) -> Change:
        partitions = partition_counts(clients.admin, self.settings)
        old, new = before.description, describe_state(self.plan, partitions)
        require_partitions(old, partitions)
        declared = parse_declared(old, new, self.renames, self.drops, self.adds)
        return Change(before, new, carry(old, new, declared))

    def _planned(self, change: Change, folder: Path, built: dict[tuple[TaskId, str], Path]) -> UpgradePlan:
        """Return the plan, and add the folders of the stores that are copied to `built`.

        Builds nothing if the upgrade is refused.
        """
        old, new = change.old, change.new
        against = [*obstacles(old, new), *(unroutable(self.plan) if old.routing else ()), *self._in_flight(change)]
        against += self._lost_keys(change)
        left = [
            changelog_of(old.application_id, old.stores[c.was].spec)
            for c in change.changes
            if c.was
            and c.change_kind in (StoreChangeKind.COPIED, StoreChangeKind.READ_AGAIN, StoreChangeKind.DROPPED)
            and old.stores[c.was].spec.has_changelog
        ]
        plan = UpgradePlan(
            old.application_id, old.version, new.version, tuple(against), change.changes, {}, change.before.waiting,
            tuple(dict.fromkeys(left)), tuple(range(len(old.subtopologies), len(new.subtopologies))),
        )  # fmt: skip
        if plan.refused:
            return plan
        keys: dict[str, int] = {}
        chosen = change.stores((StoreChangeKind.COPIED, StoreChangeKind.DROPPED))
        facts = {task: found.facts for task, found in change.before.found.items()}
        require_room_to_upgrade(
            change.before.context.evidence.witnesses, facts, folder,
            self._restores(change, StoreChangeKind.COPIED), self._restores(change, StoreChangeKind.DROPPED),
        )  # fmt: skip
        state = OldState(change.before.context, folder, self.listener, self.probe, self.report)
        for task, store, spec in chosen:
            place = state.build(change.before.found[task], spec)
            keys[store.was] = keys.get(store.was, 0) + keys_of(place, spec, change.before.committed[task])
            if store.change_kind is StoreChangeKind.COPIED:
                built[task, store.was] = place
            else:
                shutil.rmtree(place)
        return replace(plan, keys=keys)

    def _restores(self, change: Change, change_kind: StoreChangeKind) -> list[StoreRestore]:
        """Return how the old stores of this kind of change will be built. Raises `StartRefused` if one cannot be."""
        restores = []
        for task, _, spec in change.stores((change_kind,)):
            found = change.before.context.evidence.candidates(change.before.found[task], None)
            # A task that has never run is refused when it is built.
            if found is not None:
                candidate, passed_over = found.candidates[spec.name], found.passed_over[spec.name]
                restores.append(StoreRestore.of(task, spec.name, candidate, passed_over))
        return restores

    def _in_flight(self, change: Change) -> list[str]:
        """Return obstacles to an upgrade: unread records of the application's own with their old key or too few columns."""
        old, new = change.old, change.new
        rekeyed = {
            new.subtopology_of(c.store)
            for c in change.changes
            if c.was and c.store and old.keys_of(c.was) != new.keys_of(c.store)
        }
        own_topics = {old.routed_topic(topic): topic for topic in old.own_topics}
        summary = []
        for task, at in change.before.committed.items():
            for topic in sorted(own_topics.keys() & set(at.next_offsets)):
                columns = new_columns(old, new, own_topics[topic])
                if task.subtopology not in rekeyed and not columns:
                    continue
                other = f"with other columns than the new version reads ({', '.join(columns)})"
                what = "under the old key" if task.subtopology in rekeyed else other
                partition = TopicPartition(topic, task.partition)
                end = change.before.found[task].facts.sources[partition].end
                if records_between(change.before.context.clients, partition, at.next_offsets[topic], end):
                    summary.append(
                        f"{partition} holds records {what} that are not read yet; bring the old version back "
                        "and let it run, without new input, until `tidemark lag NAME` is 0 there"
                    )
        return summary

    def _lost_keys(self, change: Change) -> list[str]:
        """Return obstacles to reading tables from their topics: those that have deleted the last record of a key, or will."""
        old, new = change.old, change.new
        of_topics = (StoreChangeKind.READ_AGAIN, StoreChangeKind.NEW)
        changes = [(new.stores[c.store].spec.source_topic, c) for c in change.changes if c.change_kind in of_topics]
        read = [(topic, c) for topic, c in changes if topic is not None]
        topics = list(dict.fromkeys(topic for topic, _ in read))
        summary = uncompacted_tables(topics, self.settings, change.before.context.clients.admin)
        for topic, each in read:
            if not each.was or not old.stores[each.was].spec.has_changelog:
                continue
            for found in change.before.found.values():
                summary += [
                    f"{place} begins at offset {marks.low}, so store {each.name} would lose the keys whose records were "
                    "deleted there and that its own changelog still has: leave optimised=True out of the topology"
                    for place, marks in found.facts.sources.items()
                    if place.topic == topic and marks.low > 0
                ]
        return summary

    def _new_topics(self, clients: Clients, change: Change, topics: NewTopics) -> Description:
        """Create the new topics. Returns the new description with its generations."""
        existing = partition_counts(clients.admin, self.settings)
        app, generations = self.plan.application_id, {}
        for each in change.changes:
            if not each.store:
                continue
            if each.change_kind is StoreChangeKind.KEPT:
                generations[each.store] = change.old.stores[each.was].spec.generation
            else:
                generations[each.store] = next_generation(
                    app, each.store, existing, change.old.last_generation(each.store)
                )
        description = describe_state(with_generations(self.plan, generations), existing).continuing(change.old)
        reasons = {**description.not_recomputable, **not_recomputable(change.new, change.changes)}
        description = replace(description, not_recomputable=reasons)
        self.report("creating the topics of the new version")
        topics.ensure(named(self.plan, description), change.before.state_topic_ids)
        return description

    def _copy(
        self, change: Change, built: Mapping[tuple[TaskId, str], Path], copier: Copier
    ) -> dict[TaskId, dict[str, int]]:
        """Write the copied stores to their changelogs. Returns the records written, per task and changelog."""
        specs = {spec.name: spec for spec in copier.context.plan.stores}
        counts: dict[TaskId, dict[str, int]] = {}
        for (task, was), folder in built.items():
            each = next(c for c in change.changes if c.was == was)
            before, spec, at = change.old.stores[was], specs[each.store], change.before.committed[task]
            convert = converter(before, change.new.stores[each.store], each)
            changelog = copier.context.evidence.witnesses.changelog_of(task, spec)
            self.report(f"writing {task}/{each.name} to {changelog}")
            with opened(folder) as store, copier.store(task, spec) as loaded:
                items = ((keys, convert(values)) for keys, values in live_items(store, before.spec, at))
                counts.setdefault(task, {})[changelog.topic] = copier.copy(items, spec, changelog, loaded)
            copier.verify(task, spec, change.after[task])
        return counts

    def _forget_folders(self, description: Description, held: Sequence[Path]) -> None:
        """Delete stores that the new version does not name. The next start replaces those that have another form.

        Corrupt and half-built stores stay for `tidemark clean`, which knows whether one is the only remainder of its store.
        """
        for holder in held:
            for folder in holder.glob(f"*/{STORES_FOLDER}/*"):
                beside = any(pattern.fullmatch(folder.name) for pattern in (CORRUPT_STORE, RESTORING_STORE))
                if folder.name not in description.stores and not beside:
                    shutil.rmtree(folder, ignore_errors=True)
        self.probe("folders-forgotten")


def not_recomputable(new: Description, changes: Sequence[StoreChange]) -> dict[str, str]:
    """Return why the stores that an upgrade does not keep as they are cannot be computed from their sources, by new name."""
    carried = {each.store: CARRIED_OVER for each in changes if each.change_kind is StoreChangeKind.COPIED}
    begun = {
        each.store: BEGAN_LATER
        for each in changes
        if each.change_kind in (StoreChangeKind.NEW, StoreChangeKind.DROPPED)
        and each.store
        and new.stores[each.store].spec.source_topic is None
    }
    return {**carried, **begun}
