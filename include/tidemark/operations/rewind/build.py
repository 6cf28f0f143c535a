"""Building of stores as they were at a time, in another folder. The application may run. See invariant: point in time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.commit.history import commit_history
from tidemark.errors import CopyUnusable, StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.committed_reader import stalled_after
from tidemark.names import TaskId
from tidemark.operations.context import OperationContext
from tidemark.operations.rewind.point_in_time import Neighbours, TaskPointInTime, neighbours, point_in_time_of
from tidemark.recovery.copy_source import find_copies
from tidemark.recovery.evidence import CommittedProgress, StateCopy
from tidemark.recovery.facts import TaskFacts
from tidemark.registry.kept_history import compacted_until_ms
from tidemark.restore.listener import RestoreListener
from tidemark.restore.parallel import side_by_side
from tidemark.restore.restorer import RestoreJob, RestoreSuspended
from tidemark.restore.store_builder import whole_changelog
from tidemark.restore.task_opener import restore_job
from tidemark.stores.directory import folder_of
from tidemark.tasks.values import first_live_segment
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class PointInTimeState:
    """The state of one task at a time, and what Kafka knew when it was determined."""

    facts: TaskFacts
    point_in_time: TaskPointInTime


@dataclass(frozen=True)
class PointInTimeBuilder:
    """Finds the state of a time and builds it. The copies in `context` are those that do not advance: savepoints.

    `report` is called with what an operator should know, one line each.
    """

    context: OperationContext
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]
    _spoiled: set[str] = field(default_factory=set)

    def states_at(self, at_ms: int) -> dict[TaskId, PointInTimeState]:
        """Return the state of each task at `at_ms`. Blocks; raises `StartRefused`."""
        clients, evidence, app = self.context.clients, self.context.evidence, self.context.plan.application_id
        tasks = evidence.tasks()
        # The records are read before the ends, so what they record lies below the ends.
        around = neighbours(
            commit_history(
                clients.client_config, clients.ends, app, tasks, stalled_after_s=stalled_after(clients.settings)
            ),
            at_ms,
        )
        compacted_ms = self._compacted_until_ms()
        copies = find_copies(evidence.copies, tasks)
        facts = evidence.witnesses.facts(tasks)
        return {
            task: PointInTimeState(
                facts[task], self._point_in_time(facts[task], copies[task], around.get(task), compacted_ms, at_ms)
            )
            for task in tasks
        }

    def build(self, at_ms: int, folder: Path) -> dict[TaskId, PointInTimeState]:
        """Build every store as of that time in `folder_of(folder, task, store)`, and compare each with its changelog.

        The evidence is read again afterwards, because a batch may have been committed, or values compacted away, in the
        meantime. Blocks. Raises `StartRefused`.
        """
        built: dict[TaskId, PointInTimeState] = {}
        wanted = self.states_at(at_ms)
        while stale := {
            t: p for t, p in wanted.items() if t not in built or not built[t].point_in_time.is_still(p.point_in_time)
        }:
            for task in stale:
                shutil.rmtree(folder / str(task), ignore_errors=True)
            side_by_side(
                lambda one: self._one(*one, at_ms, folder),
                [(state, spec) for state in stale.values() for spec in self.stores_of(state.facts.task)],
                self.context.clients.settings.restore_threads,
                on_failure=lambda _: None,
            )
            built |= stale
            self.probe("point-in-time-built")
            wanted = self.states_at(at_ms)
        return built

    def build_present(
        self, state: PointInTimeState, committed: CommittedProgress, spec: StoreSpec, folder: Path
    ) -> None:
        """Build what the changelog holds now, from the changelog alone, including what has expired since that time."""
        job = restore_job(self.context.plan, state.facts, spec, committed, self.context.clients.clock())
        job = replace(
            job, first_live_segment=first_live_segment(spec, state.point_in_time.record.stream_times.of(spec.name))
        )
        self.context.rebuilder.builder(self.listener, self.probe, []).build(
            state.facts.task, job, whole_changelog(job), folder, lambda: True
        )

    def stores_of(self, task: TaskId) -> list[StoreSpec]:
        """Return the stores that can be built as of an earlier time: those that have a changelog of their own."""
        return [spec for spec in self.context.evidence.witnesses.logged_stores(task) if spec.source_topic is None]

    def job(self, state: PointInTimeState, spec: StoreSpec) -> RestoreJob:
        """Return what a restore of a store to that time needs."""
        job = restore_job(
            self.context.plan, state.facts, spec, state.point_in_time.committed, self.context.clients.clock()
        )
        end_offset = state.point_in_time.stores[spec.name].candidate.end_offset
        target = replace(
            job.target, changelog_offset=end_offset, commit_time_ms=state.point_in_time.record.commit_time_ms
        )
        return replace(job, target=target)

    def verify(self, task: TaskId, job: RestoreJob, folder: Path, remedy: str) -> None:
        """Compare a built store with its changelog up to `job.target`.

        Raises `StartRefused`, whose `records` are the first differing keys.
        """
        verdict = self.context.rebuilder.verify(task, job, folder, lambda: True)
        if not verdict.is_equal:
            raise StartRefused(f"{verdict.summary}; {remedy}", records=verdict.differences)
        if not verdict.is_proven:
            self.report(verdict.summary)

    def _point_in_time(
        self,
        facts: TaskFacts,
        found: Mapping[str, Sequence[StateCopy]],
        around: Neighbours | None,
        compacted_ms: Mapping[str, int],
        at_ms: int,
    ) -> TaskPointInTime:
        copies = {store: [c for c in held if c.location not in self._spoiled] for store, held in found.items()}
        evidence = self.context.evidence.witnesses.evidence(facts, copies)
        return point_in_time_of(evidence, around, compacted_ms, self.context.plan.version, at_ms)

    def _compacted_until_ms(self) -> dict[str, int]:
        """Return, by store, the time before which superseded values may be compacted away."""
        topics = {
            spec.name: self.context.evidence.witnesses.changelog_of(TaskId(s.index, 0), spec).topic
            for s in self.context.plan.subtopologies
            for spec in self.stores_of(TaskId(s.index, 0))
        }
        clients = self.context.clients
        configs = topic_configs(clients.admin, list(topics.values()), clients.settings) if topics else {}
        kept, now_ms = self.context.evidence.witnesses.kept_history, clients.clock()
        return {store: compacted_until_ms(kept.get(topic), configs[topic], now_ms) for store, topic in topics.items()}

    def _one(self, state: PointInTimeState, spec: StoreSpec, at_ms: int, folder: Path) -> None:
        """Build one store and verify it. If a copy proves unusable, the next source is tried."""
        task = state.facts.task
        target = folder_of(folder, task, spec.name)
        chosen = state.point_in_time.stores[spec.name]
        job = self.job(state, spec)
        try:
            self.context.rebuilder.builder(self.listener, self.probe, self.context.evidence.copies).build(
                task, job, chosen.candidate, target, lambda: True
            )
        except CopyUnusable as error:
            self._spoiled.add(chosen.candidate.location)
            shutil.rmtree(target, ignore_errors=True)
            self.report(f"store {task}/{spec.name}: {error}; the next source of state is tried")
            self._one(self.states_at(at_ms)[task], spec, at_ms, folder)
            return
        except RestoreSuspended as error:
            raise StartRefused(f"store {task}/{spec.name}: {error}; try again") from error
        if chosen.is_provable:
            self.verify(task, job, target, "nothing was changed; try another time")
        else:
            self.report(
                f"store {task}/{spec.name} is taken from {chosen.candidate.location} and checked only by its checksums: its "
                "changelog may be compacted beyond that time"
            )
