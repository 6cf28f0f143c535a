"""Finds the batches that an audit covers: per task a range of commit records, after those that were audited before.

A record of a sink or changelog belongs to the batch with the last `ends_before` that is not above its offset, and to the
task of its key, or for a changelog of its partition. So a range ends where the next record of the same task begins, or,
for a task's newest record, at the topics' ends while nothing is being written. See invariant: audit ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""

COMPUTING = frozenset([CommitKind.START, CommitKind.BATCH, CommitKind.TICK])
"""The kinds of records whose results follow from the source. All others move a task: a range begins with one of them."""

_RENEWS = frozenset([CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR])
"""The kinds after which topics, tasks or changelogs differ: the current plan cannot judge what came before."""


class Base(StrEnum):
    """The origin of the results that a range starts from."""

    EMPTY = "empty"
    CARRIED = "carried over from the audit before"
    CHANGELOG = "taken from the changelog"


@dataclass(frozen=True)
class Position:
    """The end of an audit of a task. `outputs` are the next offsets of sinks and changelogs.

    The task's later commit records are not below `commits_from` in their partition.
    """

    task: TaskId
    topology_version: str
    batch: int
    commit_time_ms: int
    next_offsets: Mapping[str, int]
    stream_times: StreamTimes
    outputs: Offsets
    commits_from: int = 0


@dataclass(frozen=True)
class TaskRange:
    """A range of one task's commit records. `before` is where the previous audit ended, None if there was none.

    `until` are the offsets of sinks and changelogs after those of the last record.
    """

    task: TaskId
    base: Base
    before: Position | None
    records: tuple[CommitRecord, ...]
    until: Offsets
    commits_from: int = 0

    @property
    def end(self) -> Position:
        """Return where the next audit continues."""
        last = self.records[-1]
        return replace(_position(last, self.until), commits_from=self.commits_from)

    @property
    def computed(self) -> tuple[CommitRecord, ...]:
        """Return the records whose results can be computed again."""
        return tuple(record for record in self.records if record.kind in COMPUTING)

    @property
    def base_until(self) -> Offsets:
        """Return the offsets up to which a changelog holds the results that the range starts from."""
        return self.computed[0].ends_before if self.computed else self.until

    def stream_times(self) -> Iterator[tuple[CommitRecord, StreamTimes]]:
        """Yield each record with the stream times at which its batch began."""
        at = self.before.stream_times if self.before else StreamTimes.none()
        for record in self.records:
            yield record, at
            at = record.stream_times

    def unclaimed(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield topic, partition, start and end offset of the outputs between the previous audit and the first record.

        The task committed nothing there. The last item is the batch before, which the previous audit has judged. Yields
        nothing if the range does not continue from an audit.
        """
        first = self.records[0]
        if self.before is None or self.base is not Base.CARRIED or first.batch != self.before.batch + 1:
            return
        for topic, ends in first.ends_before.items():
            for partition, end in ends.items():
                start = self.before.outputs.get(topic, {}).get(partition, end)
                if topic not in first.sources and start < end:
                    yield topic, partition, start, end, self.before.batch

    def spans(self) -> Iterator[tuple[CommitRecord, Offsets, Offsets]]:
        """Yield each record with the start and end offsets of its own outputs in sinks and changelogs."""
        for record, following in pairwise(self.records):
            yield record, record.ends_before, following.ends_before
        yield self.records[-1], self.records[-1].ends_before, self.until


@dataclass(frozen=True)
class PassedOver:
    """Batches of a task, both ends included, that cannot be judged, why, and what to do so that later ones can."""

    task: TaskId
    first_batch: int
    last_batch: int
    reason: str
    remedy: str


def passed_over(
    task: TaskId, history: Sequence[CommitRecord], before: Position | None, version: str, kept_since_ms: int
) -> list[PassedOver]:
    """Return the batches that `next_range` leaves out: those that the current plan cannot judge, and gaps by compaction."""
    new = _new(history, before)
    begin = _begin(new, version)
    found = [_of_another_plan(task, new, begin, version)] if begin else []
    if begin == len(new):
        return found
    if begin:
        before, new = _position(new[begin - 1], new[begin].ends_before), new[begin:]
    _, after, kept = _continued(new, before, kept_since_ms)
    has_gap = after is not before if before is not None else len(_unbroken(new, kept_since_ms)) < len(new)
    if kept and has_gap:
        first = new[0].batch if before is None else before.batch + 1
        reason = "commit records are missing that may have been compacted away (commit_record_retention_ms)"
        remedy = "audit more often than that, or keep the records longer"
        found.append(PassedOver(task, first, kept[0].batch - 1, reason, remedy))
    return found


def _of_another_plan(task: TaskId, new: Sequence[CommitRecord], begin: int, version: str) -> PassedOver:
    foreign = [record.topology_version for record in new[:begin] if record.topology_version != version]
    behind = new[begin] if begin < len(new) else None
    if behind is not None and behind.kind in _RENEWS:
        reason = f"the {behind.kind} of batch {behind.batch} came after them"
    else:
        reason = f"version {foreign[-1]} of the topology wrote them, and this is version {version}"
    remedy = "run an audit before such a change, with the topology that wrote them"
    return PassedOver(task, new[0].batch, new[begin - 1].batch, reason, remedy)


def has_begun_again(history: Sequence[CommitRecord], before: Position) -> bool:
    """Return whether the task has started again from nothing since an audit ended at `before`.

    That happens if its topics were deleted and the database of facts was kept. `history` begins at the start of the commits
    topic. If the record at the position still exists, the task has not started again.
    """
    if any(_is_at(record, before) for record in history):
        return False
    starts = [r for r in history if r.kind is CommitKind.START and r.commit_time_ms > before.commit_time_ms]
    return any(r.batch <= before.batch for r in starts) or (bool(history) and history[-1].batch <= before.batch)


def ends_before(run: TaskRange, known: Position) -> bool:
    """Return whether a range ends before a position up to which the task was audited.

    One that was committed later is of a task that has started again from nothing, so it does not.
    """
    last = run.records[-1]
    return last.batch < known.batch and last.commit_time_ms <= known.commit_time_ms


def continues_from(history: Sequence[CommitRecord], before: Position) -> bool:
    """Return whether records, read from the position, follow it; if not, read from the beginning of the topic."""
    new = _new(history, before)
    return new[0].batch == before.batch + 1 if new else not history or _is_at(history[-1], before)


def _is_at(record: CommitRecord, before: Position) -> bool:
    return (record.batch, record.commit_time_ms) == (before.batch, before.commit_time_ms)


def _new(history: Sequence[CommitRecord], before: Position | None) -> list[CommitRecord]:
    """Return the records after the position: a repeated repair or upgrade has the batch number of the one before it."""
    if before is None:
        return list(history)
    at = next((i for i, record in enumerate(history) if _is_at(record, before)), -1)
    return [r for i, r in enumerate(history) if r.batch > before.batch or (r.batch == before.batch and i > at)]


def _begin(records: Sequence[CommitRecord], version: str) -> int:
    """Return the index of the first record from which on the current plan can judge all; the length if there is none."""
    begin = 0
    for i, record in enumerate(records):
        if record.topology_version != version:
            begin = i + 1
        elif record.kind in _RENEWS:
            begin = i
    return begin


def next_range(
    task: TaskId,
    history: Sequence[CommitRecord],
    before: Position | None,
    *,
    version: str,
    readable: Offsets,
    quiet_ends: Offsets | None,
    kept_since_ms: int,
    most_batches: int,
) -> TaskRange | None:
    """Return the range to audit next; None if there is none.

    `history` are the task's records in order. `readable` are the read_committed ends of sinks and changelogs: beyond them a
    transaction is open. `quiet_ends` are the ends of all of them if nothing was being written; without it, a task's newest
    record waits for the next audit. Records older than `kept_since_ms` may have been compacted away. `version` is that of
    the current plan. The batches that it cannot judge, and those before a gap that compaction made, are `passed_over`.
    """
    new = _new(history, before)
    begin = _begin(new, version)
    if begin == len(new):
        return None
    if begin:
        before, new = _position(new[begin - 1], new[begin].ends_before), new[begin:]
    base, before, new = _continued(new, before, kept_since_ms)
    # The results of a move are read from the changelog: a range begins with it and ends before the next.
    chosen = new[:most_batches]
    cut = next((i for i, record in enumerate(chosen) if i and record.kind not in COMPUTING), len(chosen))
    chosen = chosen[:cut]
    while chosen:
        until = new[len(chosen)].ends_before if len(new) > len(chosen) else quiet_ends
        if until is not None and _within(until, readable, chosen[-1]):
            kept = {topic: dict(ends) for topic, ends in until.items() if topic in chosen[-1].ends_before}
            return TaskRange(task, base, before, tuple(chosen), kept)
        chosen.pop()
    return None


def _continued(
    new: Sequence[CommitRecord], before: Position | None, kept_since_ms: int
) -> tuple[Base, Position | None, list[CommitRecord]]:
    """Return the records after the last gap that compaction made, and what they continue from. `new` is not empty."""
    if before is not None and new[0].batch > before.batch + 1 and before.commit_time_ms < kept_since_ms:
        before = None
    if before is None:
        new = _unbroken(new, kept_since_ms)
    base = _base(new[0], before)
    if before is not None or base is Base.EMPTY or new[0].kind not in COMPUTING:
        return base, before, list(new)
    # The oldest record gives the beginning of the one after it.
    return base, _position(new[0], new[1].ends_before) if len(new) > 1 else None, list(new[1:])


def _position(record: CommitRecord, outputs: Offsets) -> Position:
    return Position(
        record.task,
        record.topology_version,
        record.batch,
        record.commit_time_ms,
        record.end_offsets,
        record.stream_times,
        outputs,
    )


def _base(first: CommitRecord, before: Position | None) -> Base:
    if first.kind is CommitKind.START and before is None:
        return Base.EMPTY
    carried = before is not None and before.topology_version == first.topology_version
    return Base.CARRIED if carried and first.kind in COMPUTING else Base.CHANGELOG


def _unbroken(records: Sequence[CommitRecord], kept_since_ms: int) -> list[CommitRecord]:
    """Return the records after the last gap that compaction may have made."""
    first = 0
    for i, (earlier, later) in enumerate(pairwise(records)):
        if later.batch != earlier.batch + 1 and earlier.commit_time_ms < kept_since_ms:
            first = i + 1
    return list(records[first:])


def _within(until: Offsets, readable: Offsets, last: CommitRecord) -> bool:
    return all(
        until.get(topic, {}).get(partition, -1) <= readable.get(topic, {}).get(partition, -1)
        for topic, ends in last.ends_before.items()
        for partition in ends
    )


def commit_rows(run: TaskRange) -> list[dict[str, Any]]:
    """Return a row per record and source topic, with the end of the record before; nulls if that is not known.

    Only a rescale gives a task other topics. The records of all other changes begin at the offsets that the task had left,
    but an upgrade or a repair may take the batch number of the one before, and stream time and clock may be others.
    """
    rows: list[dict[str, Any]] = []
    ends: dict[str, int] = dict(run.before.next_offsets) if run.before else {}
    batch: int | None = run.before.batch if run.before else None
    stream_time_ms = run.before.stream_times.task_ms if run.before else None
    commit_time_ms = run.before.commit_time_ms if run.before else None
    for record in run.records:
        if record.kind not in (*COMPUTING, CommitKind.REWIND):
            batch, stream_time_ms, commit_time_ms = None, None, None
        if record.kind is CommitKind.RESCALE:
            ends = {}
        for topic, spans in record.sources.items():
            start, end = spans[run.task.partition]
            rows.append(
                {
                    "task": str(run.task),
                    "kind": str(record.kind),
                    "batch": record.batch,
                    "previous_batch": batch,
                    "topic": topic,
                    "start_offset": start,
                    "end_offset": end,
                    "previous_end": ends.get(topic),
                    "stream_time_ms": record.stream_times.task_ms,
                    "previous_stream_time_ms": stream_time_ms,
                    "commit_time_ms": record.commit_time_ms,
                    "previous_commit_ms": commit_time_ms,
                }
            )
        ends |= record.end_offsets
        batch, stream_time_ms, commit_time_ms = record.batch, record.stream_times.task_ms, record.commit_time_ms
    return rows
