"""Decision which state belongs to a time: a pure function of commit records, watermarks, copies and the clock.

See invariants: commit records, two retentions, store checkpoint, point in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.operations.times import format_time
from tidemark.recovery.candidates import MEASURED, RecoveryCandidate, rank_candidates
from tidemark.recovery.evidence import CommittedProgress, StoreEvidence, TaskEvidence, Watermarks

_CHANGES = {CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR}


@dataclass(frozen=True)
class Neighbours:
    """A task's last commit at or before a time, and the commit after it (`successor`); None if there is none.

    `oldest_ms` is the commit time of the oldest record that is left. `changed` is the first commit after the time that
    moved the state to other changelogs.
    """

    record: CommitRecord | None
    successor: CommitRecord | None
    oldest_ms: int
    changed: CommitRecord | None = None


@dataclass(frozen=True)
class StorePointInTime:
    """Plan for building one store as of a time. `candidate.end_offset` is the next offset that the changelog had at that time.

    `is_provable` is true if the changelog still holds every value of that time, so that the store can be compared with
    it.
    """

    candidate: RecoveryCandidate
    is_provable: bool


@dataclass(frozen=True)
class TaskPointInTime:
    """The state of one task at a time. `stores` are those that have a changelog of their own."""

    task: TaskId
    record: CommitRecord
    successor: CommitRecord | None
    stores: Mapping[str, StorePointInTime]

    @property
    def committed(self) -> CommittedProgress:
        """The progress of the task at that time, as a start would find it."""
        return CommittedProgress(self.record.end_offsets, self.record.batch, self.record.stream_times)

    def is_still(self, again: TaskPointInTime) -> bool:
        """Whether what was built for this point in time is also right for `again`, which was read later.

        If no commit had followed, the changelog's end of that time was taken. A batch may have been in the course of
        its commit then, and its records may lie before that end.
        """
        if self.record.batch != again.record.batch:
            return False
        return again.successor is None or all(
            store.candidate.end_offset <= again.stores[name].candidate.end_offset for name, store in self.stores.items()
        )


def neighbours(records: Iterable[CommitRecord], at_ms: int) -> dict[TaskId, Neighbours]:
    """Return the neighbours of a time by task. `records` are of all tasks, in the order of their commits.

    A record whose commit time equals `at_ms` counts as before it.
    """
    found: dict[TaskId, Neighbours] = {}
    for record in records:
        known = found.get(record.task, Neighbours(None, None, record.commit_time_ms))
        if record.commit_time_ms <= at_ms:
            known = replace(known, record=record, successor=None, changed=None)
        elif known.record is not None and known.successor is None:
            known = replace(known, successor=record)
        if record.kind in _CHANGES and known.changed is None and record.commit_time_ms > at_ms:
            known = replace(known, changed=record)
        found[record.task] = known
    return found


def point_in_time_of(
    found: TaskEvidence,
    around: Neighbours | None,
    compacted_until_ms: Mapping[str, int],
    topology_version: str,
    at_ms: int,
) -> TaskPointInTime:
    """Return the state of `found.task` at `at_ms`, and how its stores are built. `found.now_ms` is the present time.

    `compacted_until_ms` holds, by store, the time before which superseded values may be compacted away. `found` must have
    been read after the records of `around`. Raises `StartRefused` with the reason and the remedy.
    """
    record, successor = (None, None) if around is None else (around.record, around.successor)
    if record is None:
        oldest = "it has never committed" if around is None else f"the oldest is of {format_time(around.oldest_ms)}"
        raise StartRefused(
            f"task {found.task}: no commit record is as old as {format_time(at_ms)} ({oldest}): give a later time"
        )
    if around is not None and around.changed is not None:
        raise StartRefused(
            f"task {found.task}: a {around.changed.kind} has written the state to other changelogs at "
            f"{format_time(around.changed.commit_time_ms)}, and the earlier ones are no longer known: give a later time"
        )
    if record.topology_version != topology_version:
        raise StartRefused(
            f"task {found.task}: at {format_time(at_ms)} version {record.topology_version} of the topology ran, but this is "
            f"version {topology_version}: use the topology of that version, or give a later time"
        )
    if successor is not None and successor.batch != record.batch + 1:
        raise StartRefused(
            f"task {found.task}: the commit records between batch {record.batch} and {successor.batch} are compacted "
            f"away, so the changelog offsets at {format_time(at_ms)} are not known: give a later time (records are "
            "kept for commit_record_retention_ms)"
        )
    committed = CommittedProgress(record.end_offsets, record.batch, record.stream_times)
    then = replace(found, last_record=record)
    stores = {
        store.store: _store_moment(then, store, committed, successor, compacted_until_ms[store.store], at_ms)
        for store in found.stores
        if not store.is_source
    }
    return TaskPointInTime(found.task, record, successor, stores)


def _store_moment(
    then: TaskEvidence,
    store: StoreEvidence,
    committed: CommittedProgress,
    successor: CommitRecord | None,
    compacted_until_ms: int,
    at_ms: int,
) -> StorePointInTime:
    bound = _bound(then, store, successor)
    # Batch numbers only grow, also over a rewind, so a copy of an earlier batch is a beginning of this history.
    copies = tuple(
        c for c in store.copies if c.checkpoint.batch <= committed.batch and c.checkpoint.changelog_offset <= bound
    )
    bounded = replace(store, copies=copies, changelog_watermarks=Watermarks(store.changelog_watermarks.low, bound))
    # A value is compacted away once a later value is as old as the lag; those after the bound are at most as old as the
    # successor.
    is_whole = successor is None or successor.commit_time_ms > compacted_until_ms
    faults: list[str] = []
    for candidate in rank_candidates(then, bounded, committed, MEASURED):
        fault = _lost_beginning(bounded, candidate) or candidate.fault
        if fault is not None:
            faults.append(f"{candidate.kind.value}: {fault}")
        elif is_whole or candidate.is_ready:
            return StorePointInTime(candidate, is_whole)
    if not is_whole:
        summary = format_time(0 if successor is None else successor.commit_time_ms)
        faults.append(
            f"values superseded since {summary} may be compacted away, as {store.changelog.topic} keeps only those superseded "
            f"since {format_time(compacted_until_ms)} (min.compaction.lag.ms), and no savepoint is exactly at batch "
            f"{committed.batch}"
        )
    raise StartRefused(
        f"task {then.task}: store {store.store} cannot be built as of {format_time(at_ms)}: {'; '.join(faults)}; give a later "
        "time, or the time of a savepoint"
    )


def _bound(then: TaskEvidence, store: StoreEvidence, successor: CommitRecord | None) -> int:
    """Return a next offset of the changelog that is after the batch of that time and before the batch that followed."""
    if successor is None:
        return store.changelog_watermarks.end
    bound = successor.ends_before.get(store.changelog.topic, {}).get(store.changelog.partition)
    if bound is None:
        raise StartRefused(
            f"task {then.task}: commit record {successor.batch} does not contain {store.changelog}: the store did not "
            "exist yet; give a later time"
        )
    if bound > store.changelog_watermarks.end:
        raise StartRefused(
            f"task {then.task}: {store.changelog} ends at {store.changelog_watermarks.end}, but at that time ended at "
            f"{bound}: the topic was created again, its earlier contents are lost; give a later time"
        )
    return bound


def _lost_beginning(store: StoreEvidence, candidate: RecoveryCandidate) -> str | None:
    low, bound = store.changelog_watermarks.low, store.changelog_watermarks.end
    if candidate.copy is not None or low == 0:
        return None
    return f"{store.changelog} begins at {low}, but ended at {bound} at that time" if low > bound else None
