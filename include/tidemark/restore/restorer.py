"""Restoring of one store: replay the changelog's tail in place, or build the whole store beside the old one and rename."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tidemark.clock import wall_clock_ms
from tidemark.errors import CopyUnusable, OutcomeUnknown, StartRefused, TaskCorrupted
from tidemark.failpoint import Probe
from tidemark.kafka.committed_reader import ChangelogBatch, read_committed_until
from tidemark.kafka.topic_config import changelog_policy
from tidemark.names import TopicPartition
from tidemark.restore.listener import RestoreListener, RestoreProgress
from tidemark.restore.table_reader import TableReader
from tidemark.stores.layout import ValueLayout
from tidemark.stores.protocol import WHOLE, Store, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import segments_of
from tidemark.topology.durations import about_ms, format_ms
from tidemark.topology.plan import StoreSpec


class RestoreSuspended(Exception):
    """The task was revoked, or the instance is stopping, in the middle of a restore."""


class BulkStore(Store, Protocol):
    """A store that can be built beside the live one."""

    def load_many(self, writes: list[Writes]) -> None: ...

    def finish_load(self, checkpoint: StoreCheckpoint) -> None: ...


@dataclass(frozen=True)
class RestoreJob:
    """The restore of one store to `target`, whose changelog offset is the end that was fixed before reading.

    `low_offset` is where the changelog begins. `value_bytes` is None for values of variable length. `layout` is None
    for values that are not aggregates.
    """

    spec: StoreSpec
    changelog: TopicPartition
    low_offset: int
    target: StoreCheckpoint
    value_bytes: int | None
    first_live_segment: int | None
    layout: ValueLayout | None = None


@dataclass(frozen=True)
class Restorer:
    """Runs restore jobs; safe to use from several threads. `tables` reads tables whose source topic is their changelog.

    A tombstone is deleted `delete.retention.ms` after it was compacted. A read that takes longer may miss some, so that
    deleted keys would stay. `clock`, in epoch milliseconds, is read when the reading has ended, before the checkpoint is
    written.
    """

    client_config: Mapping[str, Any]
    stalled_after_s: float
    listener: RestoreListener
    probe: Probe
    tables: TableReader
    clock: Callable[[], int] = wall_clock_ms

    def replay_tail(
        self, job: RestoreJob, from_offset: int, store: Store, should_continue: Callable[[], bool], *, since_ms: int
    ) -> None:
        """Write the tail into a live store, batch by batch. At `since_ms` the store lacked nothing before `from_offset`.

        Blocks. The checkpoint advances once, with the last batch. After a crash the same tail is replayed, which is
        harmless because records hold whole values. Raises `RestoreSuspended`, and `CopyUnusable`, with the checkpoint
        unchanged, if the tail was read until later than `delete.retention.ms` after `since_ms`.
        """
        # A store that had no checkpoint must not seem up to date before its last record is written.
        before = store.checkpoint or replace(job.target, batch=-1, source_offsets={}, changelog_offset=from_offset)
        for batch in self._read(job, from_offset, should_continue):
            store.put_many(changelog_writes(job, batch), before, None)
            self.probe("restore-tail")
        if (lacking := self._lacking(job, since_ms)) is not None:
            raise CopyUnusable(lacking)
        store.put_many([], job.target, job.first_live_segment)

    def build_whole(
        self,
        job: RestoreJob,
        building: Path,
        open_store: Callable[[Path], BulkStore],
        should_continue: Callable[[], bool],
    ) -> None:
        """Build the store in `building` from the whole changelog, and write its checkpoint last. Blocks.

        `open_store` opens a store for bulk loading. Raises `RestoreSuspended`, and `OutcomeUnknown` if reading took
        `delete.retention.ms`: then it must be done again.
        """
        began_ms = self.clock()
        store = open_store(building)
        try:
            for batch in self._read(job, job.low_offset, should_continue):
                store.load_many(changelog_writes(job, batch))
                self.probe("restore-whole")
            if (lacking := self._lacking(job, began_ms)) is not None:
                raise OutcomeUnknown(f"{lacking}; the next start reads it again")
            store.finish_load(job.target)
        finally:
            store.close()

    def _lacking(self, job: RestoreJob, since_ms: int) -> str | None:
        """Return why what was read until now may lack tombstones; None if it lacks none."""
        age_ms, kept_ms = self.clock() - since_ms, changelog_policy(job.spec).delete_retention_ms
        if age_ms < kept_ms:
            return None
        return (
            f"{job.changelog} was read until {about_ms(age_ms)} after the state that it continues, but delete.retention.ms is "
            f"{format_ms(kept_ms)}: tombstones may be compacted away, and the keys that they deleted would come back"
        )

    def _read(self, job: RestoreJob, from_offset: int, should_continue: Callable[[], bool]) -> Iterator[ChangelogBatch]:
        started = time.monotonic()
        end_offset = job.target.changelog_offset
        progress = RestoreProgress(job.spec.name, job.changelog, from_offset, from_offset, end_offset, 0, 0.0)
        self.listener.on_restore_start(progress)
        for batch in self._batches(job, from_offset, should_continue):
            yield batch
            progress = replace(
                progress,
                next_offset=batch.next_offset,
                records=progress.records + len(batch.keys),
                elapsed_s=time.monotonic() - started,
            )
            self.listener.on_batch_restored(progress)
        if progress.next_offset < end_offset:
            self.listener.on_restore_suspended(progress)
            raise RestoreSuspended(f"{job.changelog} at {progress.next_offset} of {end_offset}")
        self.listener.on_restore_end(progress)

    def _batches(
        self, job: RestoreJob, from_offset: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        end_offset = job.target.changelog_offset
        if job.spec.source_topic is not None:
            return self.tables.read_table(job.spec, job.changelog, from_offset, end_offset, should_continue)
        return read_committed_until(
            self.client_config,
            job.changelog,
            from_offset,
            end_offset,
            stalled_after_s=self.stalled_after_s,
            should_continue=should_continue,
        )


def changelog_writes(job: RestoreJob, batch: ChangelogBatch) -> list[Writes]:
    """Split a changelog batch by segment, without expired windows. Keeps the order within a key. Raises `StartRefused`."""
    lengths = {len(value) for value in batch.values if value is not None} if job.value_bytes is not None else set()
    if wrong := lengths - {job.value_bytes}:
        raise _foreign(
            job, f"values of {min(wrong)} bytes, but the topology's store {job.spec.name} needs {job.value_bytes}"
        )
    if job.value_bytes is None and job.layout is not None:
        try:
            job.layout.decode(batch.values)
        except TaskCorrupted as error:
            raise _foreign(job, f"values that do not fit the topology's store {job.spec.name}: {error}") from error
    if job.spec.segment_ms is None:
        return [Writes(WHOLE, batch.keys, batch.values)]
    segments = changelog_segments(job, batch.keys)
    writes: list[Writes] = []
    for segment in np.unique(segments).tolist():
        if job.first_live_segment is not None and segment < job.first_live_segment:
            continue
        rows = np.flatnonzero(segments == segment).tolist()
        if len(rows) == len(batch.keys):
            return [Writes(segment, batch.keys, batch.values)]
        writes.append(Writes(segment, [batch.keys[i] for i in rows], [batch.values[i] for i in rows]))
    return writes


def changelog_segments(job: RestoreJob, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the segment of each key of a changelog. Raises `StartRefused` if one is not a key of the store."""
    try:
        return segments_of(job.spec, keys)
    except TaskCorrupted as error:
        raise _foreign(job, str(error)) from error


def _foreign(job: RestoreJob, what: str) -> StartRefused:
    return StartRefused(
        f"{job.changelog} holds {what}: bring the old aggregates back, or give the store another name; if another program has "
        f"written to the changelog, `tidemark repair run NAME --store {job.spec.name}` writes the store to a new one"
    )
