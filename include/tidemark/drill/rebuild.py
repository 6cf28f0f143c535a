"""Rebuilding of one task's store up to the offsets of a savepoint, in a folder that nothing else uses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.errors import CopyUnusable, StartRefused
from tidemark.names import TaskId
from tidemark.operations.context import OperationContext
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.recovery.candidates import MEASURED, RecoveryCandidate, rank_candidates
from tidemark.recovery.evidence import CommittedProgress, StateCopy, Watermarks
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import RestoreListener, RestoreProgress
from tidemark.restore.restorer import RestoreJob
from tidemark.restore.store_builder import whole_changelog
from tidemark.restore.task_opener import job_to
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.repository import SavepointRepository
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class SavedState:
    """One store of one task in a savepoint, which was taken at `taken_ms` (epoch milliseconds)."""

    savepoint_id: str
    task: TaskId
    spec: StoreSpec
    copy: StateCopy
    taken_ms: int

    @property
    def name(self) -> tuple[TaskId, str]:
        """The task and the store."""
        return self.task, self.spec.name


def saved_states(evidence: EvidenceReader, repository: SavepointRepository, savepoint_id: str) -> list[SavedState]:
    """Return every store of a savepoint that the topology has. Blocks. Raises `CopyUnusable`, `SavepointFailed`."""
    found: list[SavedState] = []
    for name in repository.manifest(savepoint_id).tasks:
        task, manifest = TaskId.parse(name), repository.task(savepoint_id, name)
        location = repository.url(savepoint_id, f"{name}.json")
        for spec in evidence.buildable(task).values():
            saved = manifest.store(spec.name)
            if saved is not None:
                copy = StateCopy(SourceOfState.SAVEPOINT, saved.checkpoint, location, saved.size_bytes)
                found.append(SavedState(savepoint_id, task, spec, copy, manifest.taken_ms))
    return found


@dataclass
class ReadingProgress:
    """A `RestoreListener` that counts what one store read, and passes the events to another listener."""

    listener: RestoreListener
    records: int = 0

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self.listener.on_restore_start(progress)

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        self.listener.on_batch_restored(progress)

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self.records += progress.records
        self.listener.on_restore_end(progress)

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self.listener.on_restore_suspended(progress)


@dataclass(frozen=True)
class Built:
    """A rebuilt store, or `fault`, the reason why it could not be rebuilt. `ended_ms` is when its changelog had been read."""

    from_offset: int
    end_offset: int
    records: int
    seconds: float
    ended_ms: int
    fault: str | None = None

    def failed(self, fault: str) -> Built:
        """Return the same with a fault."""
        return replace(self, fault=fault)


@dataclass(frozen=True)
class DrillRebuilder:
    """Builds below `folder`. If `should_continue` returns False, the drill is to end, and `RestoreSuspended` is raised.

    `fetched` has the bytes of each store that was fetched from a savepoint, and the seconds taken. Safe to use from
    several threads, one per store. Every method blocks, and may raise `OutcomeUnknown`.
    """

    context: OperationContext
    repository: SavepointRepository
    folder: Path
    listener: RestoreListener
    should_continue: Callable[[], bool] = field(compare=False)
    fetched: list[tuple[int, float]] = field(default_factory=list, compare=False)

    def folder_of(self, kind: str, state: SavedState) -> Path:
        """Return the folder of a store that was rebuilt, or fetched from the savepoint, as `kind`."""
        return folder_of(self.folder / kind, state.task, state.spec.name)

    def whole(self, kind: str, state: SavedState, changelog: Watermarks) -> Built:
        """Rebuild from the whole changelog up to the offsets of `state`."""
        job = self._job(state, changelog.low)
        return self._build(kind, state, job, whole_changelog(job))

    def tail_of(self, older: SavedState, state: SavedState, facts: TaskFacts) -> RecoveryCandidate:
        """Return an older savepoint as a source for `state`; its `fault` says why it cannot be used. Reads nothing."""
        found = self.context.evidence.witnesses.evidence(facts, {state.spec.name: [older.copy]})
        store = next(s for s in found.stores if s.store == state.spec.name)
        checkpoint = state.copy.checkpoint
        bounded = replace(
            store, changelog_watermarks=Watermarks(store.changelog_watermarks.low, checkpoint.changelog_offset)
        )
        committed = CommittedProgress(
            checkpoint.source_offsets,
            checkpoint.batch,
            StreamTimes(checkpoint.stream_time_ms, {state.spec.name: checkpoint.stream_time_ms}),
        )
        return next(way for way in rank_candidates(found, bounded, committed, MEASURED) if way.copy is not None)

    def from_savepoint(self, kind: str, state: SavedState, way: RecoveryCandidate, changelog: Watermarks) -> Built:
        """Rebuild from the source that `tail_of` returned."""
        return self._build(kind, state, self._job(state, changelog.low), way)

    def follow(self, kind: str, state: SavedState, from_offset: int, end_offset: int, since_ms: int) -> int:
        """Read a built store's changelog on to `end_offset`. Returns the number of records.

        At `since_ms` the store lacked nothing before `from_offset`. Raises `CopyUnusable` if that is too long ago to
        continue. `state` gives the store's new checkpoint; what is read beyond it is written to the store as well.
        """
        job = self._job(state, 0)
        job = replace(job, target=replace(job.target, changelog_offset=end_offset))
        reading = ReadingProgress(self.listener)
        restorer = self.context.rebuilder.builder(reading, _pass, []).restorer
        with opened(self.folder_of(kind, state)) as store:
            restorer.replay_tail(job, from_offset, store, self.should_continue, since_ms=since_ms)
        return reading.records

    def fetch(self, state: SavedState) -> Path:
        """Return the folder of the savepoint's own store, which is fetched once. Raises `CopyUnusable`."""
        folder = self.folder_of(state.savepoint_id, state)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            SavepointCopies(self.repository).fetch(state.copy, state.task, state.spec.name, folder)
            self.fetched.append((state.copy.bytes_to_copy, time.monotonic() - started))
        return folder

    def forget(self, kind: str) -> None:
        """Delete what was built (or fetched) as `kind`."""
        shutil.rmtree(self.folder / kind, ignore_errors=True)

    def _build(self, kind: str, state: SavedState, job: RestoreJob, way: RecoveryCandidate) -> Built:
        folder = self.folder_of(kind, state)
        reading = ReadingProgress(self.listener)
        builder = self.context.rebuilder.builder(reading, _pass, [SavepointCopies(self.repository)])
        started, fault = time.monotonic(), None
        try:
            builder.build(state.task, job, way, folder, self.should_continue)
        except (StartRefused, CopyUnusable) as error:
            fault = str(error)
        seconds = time.monotonic() - started
        return Built(way.from_offset, way.end_offset, reading.records, seconds, self.context.clients.clock(), fault)

    def _job(self, state: SavedState, low_offset: int) -> RestoreJob:
        """Return a job to the savepoint's own checkpoint, whose changelog offset is the end that was fixed before reading.

        See invariants: end of a restore, store checkpoint.
        """
        return job_to(self.context.plan, state.task, state.spec, low_offset, state.copy.checkpoint)


def _pass(_point: str) -> None:
    """Do nothing: tests do not kill a drill at certain points."""
