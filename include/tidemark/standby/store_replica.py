"""One store of one task that a standby copies: how far the copy is, and whether it can continue from there."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.kafka.topic_config import changelog_policy
from tidemark.names import TaskId
from tidemark.recovery.candidates import gap_after
from tidemark.recovery.evidence import KeptDeletions, Watermarks
from tidemark.recovery.facts import TaskFacts
from tidemark.restore.restorer import RestoreJob, changelog_writes
from tidemark.stores.protocol import StoreFigures, StoreSnapshot
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.values import first_live_segment

log = logging.getLogger(__name__)

_MARK_EVERY_MS = 10_000


@dataclass(frozen=True)
class ReplicaBounds:
    """The offsets and times that were last read from Kafka for one store.

    `asked_ms` is the wall clock when Kafka was asked, and `asked_s` the monotonic clock, which cannot be set back.
    """

    asked_ms: int
    changelog: Watermarks
    stream_time_ms: int
    asked_s: float

    @property
    def end_offset(self) -> int:
        """The end offset at which a copy is up to date."""
        return self.changelog.end


def bounds_of(facts: TaskFacts, job: RestoreJob, asked_ms: int, asked_s: float) -> ReplicaBounds:
    """Select the store's part of the facts. Stream time is that of its node in the task's last commit record."""
    changelog = facts.changelogs[job.spec.name]
    stream_time_ms = NO_STREAM_TIME if facts.record is None else facts.record.stream_times.of(job.spec.name)
    return ReplicaBounds(asked_ms, changelog, stream_time_ms, asked_s)


def rebuild_reason(
    checkpoint: StoreCheckpoint, job: RestoreJob, bounds: ReplicaBounds, kept: KeptDeletions, now_ms: int
) -> str | None:
    """Return why a copy at `checkpoint` must be built from the beginning; None if it can continue."""
    target = job.target
    if (checkpoint.application_id, checkpoint.store) != (target.application_id, target.store):
        return f"belongs to {checkpoint.application_id}/{checkpoint.store}"
    if checkpoint.value_layout != target.value_layout:
        return f"holds values of layout {checkpoint.value_layout}, but the topology needs {target.value_layout}"
    if job.spec.retention_ms is not None and checkpoint.stream_time_ms > bounds.stream_time_ms:
        return "is ahead of the committed stream time: windows that had expired may be live again"
    return gap_after(checkpoint, job.changelog, bounds.changelog, kept, now_ms)


@dataclass(frozen=True)
class ReplicaSnapshot:
    """The contents of a copy and its checkpoint, which belong together. `end_offset` is that of the newest bounds,
    which Kafka was asked for at `asked_s`. At `complete_s` the copy was known to be complete. Both are of the monotonic clock.

    `records_end` is the next offset after the last record; where that is not known, the checkpoint's.

    If not `is_whole`, the copy is still being built, so its contents were never those of the store. `fault` says why it is no
    longer followed.
    """

    snapshot: StoreSnapshot
    checkpoint: StoreCheckpoint
    end_offset: int
    asked_s: float
    complete_s: float
    records_end: int
    is_whole: bool
    fault: str | None


class FollowedStore:
    """A copy of one store. Its checkpoint is what RocksDB holds, or newer only in its time.

    Used by one thread at a time, except `snapshot` and `figures`, which any thread may call.
    """

    def __init__(
        self,
        task: TaskId,
        job: RestoreJob,
        kept: KeptDeletions,
        folder: Path,
        open_store: Callable[[Path], RocksStore],
        clock: Callable[[], int],
    ) -> None:
        """Open the store. `job.target` is the pattern of the checkpoint; `see` decides where reading continues."""
        self.task = task
        self.job = job
        self.records = 0
        self._kept = kept
        self._folder = folder
        self._open = open_store
        self._clock = clock
        self._store = open_store(folder)
        self._checkpoint = self._store.checkpoint
        self._written_ms = 0
        self._is_closed = False
        self._bounds: ReplicaBounds | None = None
        self._aim: ReplicaBounds | None = None
        self.fault: str | None = None
        self._records_end: int | None = None
        self.complete_s = float("-inf")
        """The time of the monotonic clock at which the copy was last known to be complete."""
        self.is_whole = False
        """Whether the copy has reached an end of the changelog since it was opened or built again.

        If the clock is set back, the time at which it was complete is not known any more, so the copy must reach an end again.
        """
        # Held while contents and checkpoint change.
        self._changing = threading.RLock()

    @property
    def name(self) -> str:
        """The name in messages, such as `0_3/counts`."""
        return f"{self.task}/{self.job.spec.name}"

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        """The checkpoint of the copy; None before the first `see`."""
        return self._checkpoint

    @property
    def next_offset(self) -> int:
        """The next offset of the changelog to read."""
        return 0 if self._checkpoint is None else self._checkpoint.changelog_offset

    @property
    def bounds(self) -> ReplicaBounds:
        """The newest bounds."""
        if self._bounds is None:
            raise RuntimeError(f"{self.name} is used before its first `see`")
        return self._bounds

    @property
    def lag_offsets(self) -> int:
        """The distance to the end in offsets, which include transaction markers: not a number of records."""
        return max(0, self.bounds.end_offset - self.next_offset)

    def stop(self, fault: str, bounds: ReplicaBounds) -> None:
        """Stop following, and keep what the copy holds, because the changelog no longer has it. `fault` says why."""
        if self.fault is None:
            log.error("standby copy of %s is no longer followed, and kept as it is: %s", self.name, fault)
        self.fault = fault
        seen = self._bounds or bounds
        # Where the topic begins now says nothing about what was marked before.
        low = seen.changelog.low if self._store.checkpoint is None else 0
        self._bounds = replace(seen, changelog=Watermarks(low, seen.changelog.end))

    def _is_cut(self, bounds: ReplicaBounds) -> bool:
        """Whether reading from the changelog's beginning would give only a part of the store."""
        spec = self.job.spec
        deletes = spec.source_topic is not None or changelog_policy(spec).retention_ms is not None
        return bounds.changelog.low > 0 and not deletes

    def see(self, bounds: ReplicaBounds) -> bool:
        """Take in new bounds.

        Returns True if reading must begin again or end, because the copy was emptied or is no longer followed.
        """
        with self._changing:
            return self._see(bounds)

    def _see(self, bounds: ReplicaBounds) -> bool:
        if self._checkpoint is None and self._is_cut(bounds):
            self._stop_at_cut("has nothing yet", bounds)
            return True
        self._bounds = bounds
        if self._checkpoint is None:
            self._begin(bounds)
            return True
        why = rebuild_reason(self._checkpoint, self.job, self._at_least_here(bounds), self._kept, self._clock())
        if why is not None:
            self.empty(why)
            return True
        if self._aim is None:
            self._aim = bounds
        if self._checkpoint.commit_time_ms > self._clock():
            self.is_whole, self._aim = False, bounds
        self._checkpoint = self._with_current_time(replace(self._checkpoint, stream_time_ms=bounds.stream_time_ms))
        has_expired = self._expire(bounds)
        if has_expired or self._clock() - self._written_ms >= _MARK_EVERY_MS:
            self.mark()
        return False

    def _at_least_here(self, bounds: ReplicaBounds) -> ReplicaBounds:
        """Return the bounds with an end that is at least what this copy has read since.

        Bounds may be older than the last read; such a copy is not beyond the end.
        """
        if self._aim is None:
            return bounds
        end = max(bounds.changelog.end, self.next_offset)
        return replace(bounds, changelog=Watermarks(bounds.changelog.low, end))

    def note_records_end(self, offset: int) -> None:
        """Take the next offset after the last record that a copy from disk contains, which its checkpoint does not name."""
        with self._changing:
            if self._records_end is None:
                self._records_end = offset

    def write(self, batch: ChangelogBatch, records_end: int | None = None) -> bool:
        """Write a batch that begins at `next_offset`. Returns False if it came too late, so that the copy was emptied.

        `records_end` is the next offset after the batch's last record, if it has records; its `next_offset` may be later.
        Raises `StartRefused` if the changelog holds values of another layout than the topology's.
        """
        with self._changing:
            return self._write(batch, records_end)

    def _write(self, batch: ChangelogBatch, records_end: int | None) -> bool:
        checkpoint = self._known()
        if (why := self._kept.gap_since(checkpoint.commit_time_ms, self._clock())) is not None:
            self.empty(why)
            return False
        if batch.next_offset <= checkpoint.changelog_offset:
            return True
        moved = self._with_current_time(replace(checkpoint, changelog_offset=batch.next_offset))
        if batch.keys:
            self._store.put_many(changelog_writes(self.job, batch), moved, self.job.first_live_segment)
            self._written_ms = self._clock()
            self.records += len(batch.keys)
            self._records_end = records_end
        self._checkpoint = moved
        return True

    def _with_current_time(self, checkpoint: StoreCheckpoint) -> StoreCheckpoint:
        """Advance the checkpoint's time if the target end is reached: no tombstone from before it was read is missing then."""
        for aim in (self._aim, self._bounds):
            if aim is None or checkpoint.changelog_offset < aim.end_offset:
                break
            is_future = checkpoint.commit_time_ms > self._clock()
            at_ms = aim.asked_ms if is_future else max(checkpoint.commit_time_ms, aim.asked_ms)
            checkpoint = replace(checkpoint, commit_time_ms=at_ms)
            self.complete_s = max(self.complete_s, aim.asked_s)
            self._aim = self._bounds
            self.is_whole = True
        return checkpoint

    def _expire(self, bounds: ReplicaBounds) -> bool:
        """Advance expiry. Returns whether more segments have expired."""
        before = self.job.first_live_segment
        self.job = replace(self.job, first_live_segment=first_live_segment(self.job.spec, bounds.stream_time_ms))
        return self.job.first_live_segment != before

    def _known(self) -> StoreCheckpoint:
        if self._checkpoint is None:
            raise RuntimeError(f"{self.name} is used before its first `see`")
        return self._checkpoint

    def _stop_at_cut(self, why: str, bounds: ReplicaBounds) -> None:
        begins = f"{self.job.changelog} has lost its beginning, up to offset {bounds.changelog.low}"
        self.stop(f"the copy {why}, and {begins}, although it is only compacted", bounds)

    def empty(self, why: str) -> None:
        """Discard the copy and begin at the changelog's beginning. If that is deleted, keep the copy and stop following."""
        if self._is_cut(self.bounds):
            self._stop_at_cut(why, self.bounds)
            return
        log.warning("standby copy of %s %s: it is built again", self.name, why)
        with self._changing:
            self._store.close()
            # If the new one cannot be opened, `close` has nothing to write to.
            self._is_closed = True
            shutil.rmtree(self._folder, ignore_errors=True)
            self._store = self._open(self._folder)
            self._is_closed = False
            self._begin(self.bounds)

    def _begin(self, bounds: ReplicaBounds) -> None:
        """Begin to read now, so that no deletion from now on can be missed."""
        self._aim = bounds
        self.is_whole, self._records_end = False, None
        self._checkpoint = replace(
            self.job.target,
            commit_time_ms=self._clock(),
            changelog_offset=bounds.changelog.low,
            stream_time_ms=bounds.stream_time_ms,
        )
        self._expire(bounds)

    @property
    def holds_something(self) -> bool:
        """Whether anything was read. An empty copy is no state, and must not keep a task from starting as fresh."""
        return self._checkpoint is not None and self.next_offset > self.bounds.changelog.low

    def mark(self) -> None:
        """Write the checkpoint, and drop windows that have expired since."""
        if self.holds_something:
            self._store.put_many([], self._known(), self.job.first_live_segment)
            self._written_ms = self._clock()

    def snapshot(self) -> ReplicaSnapshot:
        """Return the present contents, to be released by the caller. Waits for a write that runs.

        Raises `SnapshotReleased` if the copy is closed.
        """
        with self._changing:
            checkpoint = self._known()
            return ReplicaSnapshot(
                snapshot=self._store.snapshot(),
                checkpoint=checkpoint,
                end_offset=self.bounds.end_offset,
                asked_s=self.bounds.asked_s,
                complete_s=self.complete_s,
                records_end=checkpoint.changelog_offset if self._records_end is None else self._records_end,
                is_whole=self.is_whole,
                fault=self.fault,
            )

    def figures(self) -> StoreFigures | None:
        """Return the size of the copy, or None once it is closed. Any thread may call it. Waits for a write that runs."""
        with self._changing:
            return self._store.figures()

    def create_checkpoint(self, folder: Path) -> None:
        """Copy the store as it is now to `folder`, which must not exist, by hard links."""
        self.mark()
        self._store.create_checkpoint(folder)

    def close(self) -> None:
        """Write the checkpoint and release the store. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            if self._bounds is not None:
                self.mark()
            self._store.close()
