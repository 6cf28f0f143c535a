"""Repair of changelogs: the contents of a right copy of a store are written to its changelog, or to a new one.

Steps, with all instances fenced: take each task's copy that is up to date with the last commit, or compute it again;
compare it with the changelog; then one transaction with the differing keys and a commit record of kind repair. If the
changelog was deleted, created again or truncated, holds records that do not belong to the store, or differs in more
than a transaction may hold, the whole store is first written to a new changelog and compared there, and the transaction
contains the description that names it. Before that transaction nothing has changed, after it everything has: a second
run finds that nothing differs. See invariants: commit records, topic identity, evidence or nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import CopyUnusable, PreflightFailed, StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.messages import Message
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId
from tidemark.operations.change.commit import Switch, exclusive_access, fenced_application_state
from tidemark.operations.change.current_state import ApplicationState, context_of, output_ends, read_application_state
from tidemark.operations.change.in_flight import moved_records
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.change.repair_plan import (
    DifferingKeys,
    RepairPlan,
    StoreRepair,
    TaskRepair,
    needs_new_changelog,
)
from tidemark.operations.change.repaired_stores import REPAIRS_FOLDER, note_repaired
from tidemark.operations.change.store_copy import Copier, live_items
from tidemark.operations.clients import Clients
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.history import drill_history
from tidemark.operations.drill_history.store_verdicts import DrillVerdict, Name
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.recovery.candidates import (
    MEASURED,
    RecoveryCandidate,
    changelog_fault,
    has_lost_beginning,
    holds_last_commit,
    rank_candidates,
)
from tidemark.recovery.evidence import StoreEvidence, TaskEvidence
from tidemark.recovery.recomputable import user_functions
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import Refuse, best_candidate
from tidemark.registry.description import Description
from tidemark.registry.generations import with_new_changelogs
from tidemark.registry.reader import named, resolved
from tidemark.registry.topic_identities import BEGIN_AGAIN, TopicUse, format_lost
from tidemark.restore.listener import RestoreListener
from tidemark.restore.recompute import Recomputation, recompute
from tidemark.restore.restorer import RestoreJob, changelog_writes
from tidemark.restore.store_builder import StoreBuilder
from tidemark.restore.task_opener import restore_job
from tidemark.settings import Settings
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreSpec, TopologyPlan

_COPIES = (SourceOfState.LOCAL, SourceOfState.STANDBY, SourceOfState.SAVEPOINT)
"""The kinds of copies that may be right if a changelog is damaged.

For a changelog that is whole, only the first counts, because the others follow the changelog.
"""


@dataclass(frozen=True)
class _Part:
    """One task's part of a store, and the source of its contents. `values` are what the changelog lacks."""

    task: TaskId
    spec: StoreSpec
    candidate: RecoveryCandidate
    summary: TaskRepair
    values: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Repair:
    """One repair of the application that `plan`, its module's, describes.

    `stores` are those that were asked for; if there are none, those whose changelog is damaged, or differed from the
    store in the last drill. `source` is the only source of state that decides what is right. If it is None, a whole
    changelog is compared with the store of the instance that processes, and a damaged one is written from any copy that
    is up to date with the last commit.
    """

    plan: TopologyPlan
    settings: Settings
    clock: Callable[[], int]
    stores: Sequence[str]
    source: SourceOfState | None
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]

    def show(self) -> RepairPlan:
        """Return what a repair would do now, before anything is compared. The application may run. Raises `StartRefused`."""
        before = read_application_state(Clients.of(self.settings, self.clock), self.plan, may_be_gone=True)
        own = self._context(before)
        parts = self._parts(before, own, may_run=True)
        if not parts:
            raise self._nothing(own.plan)
        return self._planned(own.plan, parts)

    def run(self, approve: Callable[[RepairPlan], bool]) -> bool:
        """Compare with all instances fenced, ask, write. Returns False if `approve` returned False. Blocks.

        Does not ask if nothing differs. Raises `TaskLocked` or `PreflightFailed` while the application runs,
        `StartRefused`, and what a commit raises: after `OutcomeUnknown`, run it again to find out.
        """
        clients = Clients.of(self.settings, self.clock)
        access = exclusive_access(clients, self.plan, Command.REPAIR, REPAIRS_FOLDER, self.report)
        with access as (producer, folder, _):
            before = fenced_application_state(clients, self.plan, may_be_gone=True)
            own = self._context(before)
            parts = self._parts(before, own)
            if parts:
                return self._run(before, own, parts, producer, folder, approve)
            if any(_repaired(before, task) for task in before.found):
                self.report(
                    f"the changelogs of {self.plan.application_id} have already been repaired, and it has not run since"
                )
                return True
            raise self._nothing(own.plan)

    def _run(
        self,
        before: ApplicationState,
        own: OperationContext,
        parts: Sequence[_Part],
        producer: BatchProducer,
        folder: Path,
        approve: Callable[[RepairPlan], bool],
    ) -> bool:
        parts = self._compared(before, own, parts, folder)
        plan = self._planned(own.plan, parts)
        for store in plan.stores:
            if not store.is_new:
                self._require_right_stores(
                    before, own, [part for part in parts if part.spec.name == store.store], folder
                )
        if plan.changes_nothing:
            self.report(
                f"{', '.join(s.changelog for s in plan.stores)}: no difference from the stores was found; nothing was changed"
            )
            self._note(parts)
            return True
        if not approve(plan):
            return False
        with NewTopics(own.clients.admin, self.settings, self.report) as topics:
            new_stores = [store.store for store in plan.stores if store.is_new]
            damaged = before.damaged_changelogs() - {store.changelog for store in plan.stores}
            counts: dict[TaskId, dict[str, int]] = {}
            after, description = own, None
            if new_stores:
                description = self._new_changelogs(before, own.clients, new_stores, damaged, topics)
                after = context_of(named(self.plan, description), self.settings, self.clock)
                copier = Copier(after, producer, folder / "new", self.probe, before.lost)
                self._copy([part for part in parts if part.spec.name in new_stores], before, copier, folder, counts)
                self.probe("copied")
            stay = [part for part in parts if part.values and part.spec.name not in new_stores]
            values = {own.evidence.witnesses.changelog_of(part.task, part.spec): part.values for part in stay}
            for part in stay:
                changelog = own.evidence.witnesses.changelog_of(part.task, part.spec)
                counts.setdefault(part.task, {})[changelog.topic] = len(part.values)
            _remember_repaired(before, counts)
            committed = {task: before.followed(task) for task in counts}
            ends = output_ends(after.clients, after.plan, list(committed), damaged)
            for task in committed:
                # Without them, a copy that lacks the last commits would count as up to date when that store is repaired.
                ends |= before.written_ends(task, damaged)
            appended = {place.topic for place in values}
            records = moved_records(
                CommitKind.REPAIR, after.plan, committed, counts, ends, self.clock(), appended=appended
            )
            Switch(after.clients, after.plan, before, producer, self.probe, "repair", topics).commit(
                records, description, values=values
            )
        self._verify(stay, before, own, folder)
        self._note(parts)
        return True

    def _note(self, parts: Sequence[_Part]) -> None:
        right = [(part.task, part.spec.name) for part in parts if part.summary.is_judge]
        note_repaired(self.settings.state_dir, self.plan.application_id, right, self.clock())

    def _context(self, before: ApplicationState) -> OperationContext:
        """Return the context of the deployed topology with the names in use.

        Raises `StartRefused` if it keeps another state.
        """
        reads = (TopicUse.SOURCE, TopicUse.REPARTITION)
        if gone := [each for each in before.lost.values() if each.use in reads and each.found_id is None]:
            raise StartRefused(format_lost(self.plan.application_id, gone))
        plan = resolved(self.plan, before.description, partition_counts(before.context.clients.admin, self.settings))
        return context_of(plan, self.settings, self.clock, before.description)

    def _parts(self, before: ApplicationState, own: OperationContext, *, may_run: bool = False) -> list[_Part]:
        """Return each task's part of each store, with the source of its contents. Raises `StartRefused`.

        With `may_run`, the store of a running instance counts, because it will be up to date once the instance is
        stopped.
        """
        parts: list[_Part] = []
        verdicts = drill_history(self.settings, own.plan).verdicts
        for name in self._chosen(before, own.plan, verdicts):
            number = before.description.subtopology_of(name)
            found = [
                self._part(before, own.evidence, task, name, may_run=may_run)
                for task in sorted(before.committed)
                if task.subtopology == number
            ]
            if self.source is None:
                _require_unsuspected(found, verdicts, self._remedy(before, own.evidence, name))
            if not any(part.summary.is_judge for part in found):
                if all(_repaired(before, part.task) for part in found):
                    continue
                wanted = f"{self.source.value} copy" if self.source else "copy"
                raise StartRefused(
                    f"store {name}: no {wanted} of it here is up to date with the last commit, so it is not known what its "
                    f"changelog should hold; {self._remedy(before, own.evidence, name)}"
                )
            parts += found
        return parts

    def _changelogs(self, own: TopologyPlan) -> dict[str, str]:
        """Return the changelogs that are the application's own, by store."""
        return {spec.name: changelog_of(self.plan.application_id, spec) for spec in own.stores if spec.has_changelog}

    def _nothing(self, own: TopologyPlan) -> StartRefused:
        return StartRefused(
            f"no changelog of {self.plan.application_id} is damaged, and no drill has found one that differs from its store: "
            f"name the stores to compare with --store: {', '.join(self._changelogs(own))}"
        )

    def _chosen(self, before: ApplicationState, own: TopologyPlan, verdicts: Mapping[Name, DrillVerdict]) -> list[str]:
        """Return the stores to repair. Raises `StartRefused` if one cannot be repaired."""
        known = {spec.name: spec for spec in own.stores}
        if unknown := [name for name in self.stores if name not in known]:
            raise StartRefused(f"there is no store {unknown[0]}; the topology has {', '.join(known)}")
        damaged = before.damaged_changelogs()
        own_changelog = self._changelogs(own)
        suspected = {name for (_, name), verdict in verdicts.items() if verdict.is_suspect}
        faulty = [name for name, topic in own_changelog.items() if topic in damaged or name in suspected]
        chosen = list(dict.fromkeys(self.stores)) or faulty
        for name in chosen:
            spec = known[name]
            if name not in own_changelog:
                why = (
                    "is not logged"
                    if spec.source_topic is None
                    else f"uses as its changelog the source topic {spec.source_topic}"
                )
                raise StartRefused(f"store {name} {why}: it has no changelog of its own to repair")
            if spec.uncopied is not None:
                raise StartRefused(
                    f"store {name} is {spec.uncopied} and cannot be copied, so it is not known what its changelog should hold: "
                    f"{BEGIN_AGAIN}"
                )
        return chosen

    def _part(self, before: ApplicationState, own: EvidenceReader, task: TaskId, name: str, *, may_run: bool) -> _Part:
        found, committed, spec = before.found[task], before.committed[task], own.buildable(task)[name]
        evidence = own.task_evidence(found, self.source)
        store = next(each for each in evidence.stores if each.store == name)
        damaged = changelog_fault(evidence, store)
        candidate = self._judge(evidence, store, before, is_damaged=damaged is not None, may_run=may_run)
        is_judge = candidate is not None
        whole = rank_candidates(evidence, store, committed, MEASURED, SourceOfState.CHANGELOG)[0]
        if candidate is None:
            if damaged is not None and not has_lost_beginning(store):
                # The tail that a copy would read from this changelog is not what was written to it.
                raise StartRefused(
                    f"task {task}: {damaged}, and no copy of store {name} here is up to date with the last commit; "
                    f"{self._remedy(before, own, name)}"
                )
            other = best_candidate(own.task_evidence(found, None), store, committed, MEASURED, None)
            if isinstance(other, Refuse):
                raise StartRefused(f"{other.reason}; {self._remedy(before, own, name)}")
            candidate = other
        local = [each for each in rank_candidates(evidence, store, committed, MEASURED) if _is_level_local(each)]
        summary = TaskRepair(
            str(task), candidate.kind, candidate.location, is_judge, damaged or whole.fault, is_alone=len(local) < 2
        )
        return _Part(task, spec, candidate, summary)

    def _remedy(self, before: ApplicationState, own: EvidenceReader, name: str) -> str:
        """Return what helps if no copy of a store is known to be right.

        It does not look whether a source topic is compacted: a repair from a copy does not need the right to do so.
        """
        for task, committed in before.committed.items():
            evidence = own.task_evidence(before.found[task], None)
            for store in evidence.stores:
                if store.store == name:
                    (candidate,) = rank_candidates(evidence, store, committed, MEASURED, SourceOfState.SOURCE)
                    if candidate.fault is not None:
                        return BEGIN_AGAIN
        return f"`tidemark repair run NAME --store {name} --from source` computes it again, or {BEGIN_AGAIN}"

    def _judge(
        self, evidence: TaskEvidence, store: StoreEvidence, before: ApplicationState, *, is_damaged: bool, may_run: bool
    ) -> RecoveryCandidate | None:
        """Return the source that decides what the changelog should hold; None if there is none here. Raises `StartRefused`."""
        committed = before.committed[evidence.task]
        if self.source is SourceOfState.SOURCE:
            candidate = rank_candidates(evidence, store, committed, MEASURED, SourceOfState.SOURCE)[0]
            if candidate.fault is not None:
                raise StartRefused(f"task {evidence.task}: store {store.store}: {candidate.fault}")
            return candidate
        kinds = [self.source] if self.source else _COPIES if is_damaged else [SourceOfState.LOCAL]
        candidates = [
            candidate
            for candidate in rank_candidates(evidence, store, committed, MEASURED)
            if candidate.copy is not None and candidate.kind in kinds
        ]
        last = before.found[evidence.task].facts.last_instance
        level = [candidate for candidate in candidates if candidate.fault is None and candidate.is_ready]
        if not level and is_damaged:
            # A standby knows no batches, only how far it has read.
            whole = (
                candidate
                for candidate in candidates
                if candidate.copy is not None and holds_last_commit(candidate.copy, evidence, store)
            )
            level = [replace(candidate, from_offset=candidate.end_offset) for candidate in whole]
        own = [candidate for candidate in level or candidates if _is_of(candidate, last, self.settings.state_dir)]
        if own and (level or may_run):
            return own[0]
        return next(iter(level), None)

    def _planned(self, own_plan: TopologyPlan, parts: Sequence[_Part]) -> RepairPlan:
        stores: list[StoreRepair] = []
        for name in dict.fromkeys(part.spec.name for part in parts):
            own = [part for part in parts if part.spec.name == name]
            changelog = changelog_of(self.plan.application_id, own[0].spec)
            summary = tuple(part.summary for part in own)
            is_new = needs_new_changelog(summary, [store for store in stores if store.is_new is False])
            functions: tuple[str, ...] = ()
            if self.source is SourceOfState.SOURCE:
                functions = user_functions(own_plan.subtopologies[own[0].task.subtopology], own[0].spec)
            stores.append(StoreRepair(name, changelog, summary, is_new, functions))
        return RepairPlan(self.plan.application_id, self.source, tuple(stores))

    def _compared(
        self, before: ApplicationState, own: OperationContext, parts: Sequence[_Part], folder: Path
    ) -> list[_Part]:
        """Build each part in the folder, and return the parts with what their changelogs lack."""
        recomputed = folder / "recomputed"
        if self.source is SourceOfState.SOURCE:
            self.report("processing the source topics from their start")
            ends = {part.task: before.committed[part.task].next_offsets for part in parts}
            stores = frozenset(part.spec.name for part in parts)
            recompute(Recomputation(own.plan, stores, ends, recomputed), self.settings, self.listener, lambda: True)
        builder = own.rebuilder.builder(self.listener, self.probe, own.evidence.copies, recomputed)
        compared = [self._one(before, own, builder, part, folder) for part in parts]
        shutil.rmtree(recomputed, ignore_errors=True)
        self.probe("repair-compared")
        return compared

    def _one(
        self, before: ApplicationState, own: OperationContext, builder: StoreBuilder, part: _Part, folder: Path
    ) -> _Part:
        task, name = part.task, part.spec.name
        job = restore_job(own.plan, before.found[task].facts, part.spec, before.committed[task], self.clock())
        built = folder_of(folder / "old", task, name)
        try:
            builder.build(task, job, part.candidate, built, lambda: True)
        except CopyUnusable as error:
            raise StartRefused(
                f"store {task}/{name}: {error}; nothing was changed; choose another source with --from"
            ) from error
        self.probe("repair-built")
        if part.summary.damaged is not None:
            self.report(
                f"{task}/{name} is taken from {part.candidate.location} without a comparison: {part.summary.damaged}"
            )
            return part
        lacking = DifferingKeys()
        try:
            _require_readable(own.clients, job)
            verdict = own.rebuilder.verify(task, job, built, lambda: True, lacking.add)
        except StartRefused as error:
            if not part.summary.is_judge:
                raise
            self.report(f"{task}/{name}: {error}")
            return replace(part, summary=replace(part.summary, damaged=str(error)))
        self.report(verdict.summary)
        if not part.summary.is_judge and not verdict.is_equal:
            raise StartRefused(
                f"{verdict.summary}; {part.candidate.location} cannot decide which of the two is right: choose a source with "
                "--from",
                records=verdict.differences,
            )
        # Windows whose records were deleted before their time must be written again, although nothing can be compared.
        damaged = verdict.summary if verdict.deleted else None
        summary = replace(
            part.summary, differing=verdict.different, differing_bytes=lacking.size_bytes, damaged=damaged
        )
        return replace(part, summary=summary, values=tuple(lacking.values))

    def _require_right_stores(
        self, before: ApplicationState, own: OperationContext, parts: Sequence[_Part], folder: Path
    ) -> None:
        """Raise `StartRefused` if a changelog is right, but a local store that would be used without reading it is wrong."""
        builder = own.rebuilder.builder(self.listener, self.probe, own.evidence.copies)
        for part in parts:
            if not part.summary.is_judge or part.candidate.kind is SourceOfState.LOCAL:
                continue
            task, name, committed = part.task, part.spec.name, before.committed[part.task]
            evidence = own.evidence.task_evidence(before.found[task], SourceOfState.LOCAL)
            store = next(each for each in evidence.stores if each.store == name)
            job = restore_job(own.plan, before.found[task].facts, part.spec, committed, self.clock())
            for candidate in rank_candidates(evidence, store, committed, MEASURED, SourceOfState.LOCAL):
                if not _is_level_local(candidate):
                    continue
                built = folder_of(folder / "local", task, name)
                builder.build(task, job, candidate, built, lambda: True)
                verdict = own.rebuilder.verify(task, job, built, lambda: True)
                if not verdict.is_equal:
                    raise StartRefused(
                        f"{job.changelog} is equal to {part.candidate.location}, but {candidate.location} is not: "
                        f"{verdict.summary}; "
                        "nothing was changed; `tidemark restore run NAME --from changelog` replaces that store",
                        records=verdict.differences,
                    )

    def _new_changelogs(
        self,
        before: ApplicationState,
        clients: Clients,
        new_stores: Sequence[str],
        damaged: Collection[str],
        topics: NewTopics,
    ) -> Description:
        """Create the changelogs that the stores have from now on, and return the description with them.

        The `damaged` changelogs of other stores are not created: an empty one would hide what happened to it.
        """
        existing = partition_counts(clients.admin, self.settings)
        description = with_new_changelogs(self.plan, before.description, new_stores, existing)
        # Other topics that were lost stay so until an operator decides about them.
        description = replace(description, topic_ids=before.description.topic_ids)
        topics.ensure(named(self.plan, description), before.state_topic_ids, damaged)
        self.probe("topics-made")
        return description

    def _copy(
        self,
        parts: Sequence[_Part],
        before: ApplicationState,
        copier: Copier,
        folder: Path,
        counts: dict[TaskId, dict[str, int]],
    ) -> None:
        """Write whole stores to their new changelogs and compare them.

        Adds the records written, per task and changelog, to `counts`.
        """
        specs = {spec.name: spec for spec in copier.context.plan.stores}
        for part in parts:
            task, at, spec = part.task, before.committed[part.task], specs[part.spec.name]
            changelog = copier.context.evidence.witnesses.changelog_of(task, spec)
            self.report(f"writing {task}/{spec.name} to {changelog}")
            with opened(folder_of(folder / "old", task, spec.name)) as store, copier.store(task, spec) as loaded:
                items = live_items(store, part.spec, at)
                counts.setdefault(task, {})[changelog.topic] = copier.copy(items, spec, changelog, loaded)
            copier.verify(task, spec, at)

    def _verify(self, parts: Sequence[_Part], before: ApplicationState, own: OperationContext, folder: Path) -> None:
        """Compare again what was written into changelogs that stay.

        Raises `PreflightFailed`, whose `records` are the first differing keys.
        """
        facts = own.evidence.witnesses.facts([part.task for part in parts])
        for part in parts:
            job = restore_job(own.plan, facts[part.task], part.spec, before.committed[part.task], self.clock())
            verdict = own.rebuilder.verify(
                part.task, job, folder_of(folder / "old", part.task, part.spec.name), lambda: True
            )
            self.report(verdict.summary)
            if not verdict.is_equal:
                raise PreflightFailed(
                    f"{verdict.summary}: another program writes to {job.changelog}; find it, then repair the changelog again",
                    records=verdict.differences,
                )
        self.probe("repair-verified")


def _remember_repaired(before: ApplicationState, counts: Mapping[TaskId, dict[str, int]]) -> None:
    """Add the changelogs that an earlier repair has written to.

    The new commit record replaces that of the earlier repair.
    """
    for task, written in counts.items():
        record = before.found[task].facts.record
        if record is not None and _repaired(before, task):
            for topic in record.changelogs:
                written.setdefault(topic, 0)


def _repaired(before: ApplicationState, task: TaskId) -> bool:
    """Whether the task's last commit is that of a repair."""
    record = before.found[task].facts.record
    return record is not None and record.kind is CommitKind.REPAIR


def _require_unsuspected(parts: Sequence[_Part], verdicts: Mapping[Name, DrillVerdict], remedy: str) -> None:
    """Raise `StartRefused` with the remedy if the last drill found that a store and its changelog differ: one is wrong."""
    for part in parts:
        verdict = verdicts.get((part.task, part.spec.name))
        if part.summary.is_judge and verdict is not None and verdict.is_suspect:
            raise StartRefused(
                f"{part.candidate.location} {verdict.summary}, and a comparison of the two cannot show which is right: "
                f"{remedy}; use `--from local` if you know that another program has written to the changelog "
                "(`tidemark audit run NAME` finds records that no task wrote)"
            )


def _require_readable(clients: Clients, job: RestoreJob) -> None:
    """Raise `StartRefused` if the changelog holds records that a restore could not read, overwritten ones included."""
    for batch in clients.read(job.changelog, job.low_offset, job.target.changelog_offset):
        changelog_writes(job, batch)


def _is_of(candidate: RecoveryCandidate, instance: int | None, state_dir: Path) -> bool:
    """Whether the source is the local copy of that instance."""
    is_local = candidate.kind is SourceOfState.LOCAL and instance is not None
    return is_local and Path(candidate.location).is_relative_to(state_dir / str(instance))


def _is_level_local(candidate: RecoveryCandidate) -> bool:
    """Whether an instance would use a local copy without reading the changelog."""
    return candidate.kind is SourceOfState.LOCAL and candidate.fault is None and candidate.is_ready
