"""Which batches an audit looks at: per task a run of commit records, behind those that were audited before (rule 24).

A record of a sink or changelog belongs to the batch whose `ends_before` is the last one not above its offset, and to the
task that its key, or for a changelog its partition, says. So a run ends where the next record of the same task begins, or,
for a task's newest record, at the topics' ends while nothing is being written.
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
"""By topic and partition."""

COMPUTING = frozenset([CommitKind.START, CommitKind.BATCH, CommitKind.TICK])
"""The kinds of records whose results follow from the source. All others move a task: a run begins with one of them."""

_RENEWS = frozenset([CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR])
"""The kinds behind which topics, tasks or changelogs are others: today's plan says nothing of what came before."""


class Base(StrEnum):
    """Where the results come from that a run goes on from."""

    EMPTY = "empty"
    CARRIED = "carried over from the audit before"
    CHANGELOG = "taken from the changelog"


@dataclass(frozen=True)
class Position:
    """Where an audit of a task ended. `outputs` are the next offsets of sinks and changelogs.

    Its later commit records are not below `commits_from` in their partition.
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
    """A run of one task's commit records. `before` is where the audit before ended, None where there was none.

    `until` are the offsets of sinks and changelogs behind the last record's own.
    """

    task: TaskId
    base: Base
    before: Position | None
    records: tuple[CommitRecord, ...]
    until: Offsets
    commits_from: int = 0

    @property
    def end(self) -> Position:
        """Where the next audit goes on."""
        last = self.records[-1]
        return replace(_position(last, self.until), commits_from=self.commits_from)

    @property
    def computed(self) -> tuple[CommitRecord, ...]:
        """The records whose results can be computed again."""
        return tuple(record for record in self.records if record.kind in COMPUTING)

    @property
    def base_until(self) -> Offsets:
        """The offsets up to which a changelog holds what the run goes on from."""
        return self.computed[0].ends_before if self.computed else self.until

    def stream_times(self) -> Iterator[tuple[CommitRecord, StreamTimes]]:
        """Each record with the stream times at which its batch began."""
        at = self.before.stream_times if self.before else StreamTimes.none()
        for record in self.records:
            yield record, at
            at = record.stream_times

    def spans(self) -> Iterator[tuple[CommitRecord, Offsets, Offsets]]:
        """Each record with the offsets of sinks and changelogs between which its own lie."""
        for record, following in pairwise(self.records):
            yield record, record.ends_before, following.ends_before
        yield self.records[-1], self.records[-1].ends_before, self.until


@dataclass(frozen=True)
class PassedOver:
    """Batches of a task, both ends included, that today's plan cannot judge, and why."""

    task: TaskId
    first_batch: int
    last_batch: int
    reason: str


def passed_over(
    task: TaskId, history: Sequence[CommitRecord], before: Position | None, version: str
) -> PassedOver | None:
    """What `next_range` leaves out of the records that it is given, None where that is nothing."""
    new = _new(history, before)
    begin = _begin(new, version)
    if not begin:
        return None
    foreign = [record.topology_version for record in new[:begin] if record.topology_version != version]
    behind = new[begin] if begin < len(new) else None
    if behind is not None and behind.kind in _RENEWS:
        reason = f"the {behind.kind} of batch {behind.batch} came behind them"
    else:
        reason = f"version {foreign[-1]} of the topology wrote them, this is version {version}"
    return PassedOver(task, new[0].batch, new[begin - 1].batch, reason)


def begun_anew(history: Sequence[CommitRecord], before: Position) -> bool:
    """Whether the task has begun a new life since an audit ended at `before`: topics deleted, the database of facts kept.

    `history` is from the beginning of the commits topic. The record of a position that is still there says that it has not.
    """
    if any(_is_at(record, before) for record in history):
        return False
    starts = [r for r in history if r.kind is CommitKind.START and r.commit_time_ms > before.commit_time_ms]
    return any(r.batch <= before.batch for r in starts) or (bool(history) and history[-1].batch <= before.batch)


def goes_on(history: Sequence[CommitRecord], before: Position) -> bool:
    """Whether records, read from where the position says, are those behind it: else look from the topic's beginning."""
    new = _new(history, before)
    return new[0].batch == before.batch + 1 if new else not history or _is_at(history[-1], before)


def _is_at(record: CommitRecord, before: Position) -> bool:
    return (record.batch, record.commit_time_ms) == (before.batch, before.commit_time_ms)


def _new(history: Sequence[CommitRecord], before: Position | None) -> list[CommitRecord]:
    return [record for record in history if before is None or record.batch > before.batch]


def _begin(records: Sequence[CommitRecord], version: str) -> int:
    """The first of the records that today's plan can judge, with all behind it; their number where there is none."""
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
    """The run to audit next, None where there is none.

    `history` are the task's records in order. `readable` are the read_committed ends of sinks and changelogs: beyond them a
    transaction is open. `quiet_ends` are the ends of all of them if nothing was being written; without it, a task's newest
    record waits for the next audit. Records older than `kept_since_ms` may have been compacted away. `version` is that of
    today's plan: what it cannot judge is `passed_over`.
    """
    new = _new(history, before)
    begin = _begin(new, version)
    if begin == len(new):
        return None
    if begin:
        before, new = _position(new[begin - 1], new[begin].ends_before), new[begin:]
    if before is not None and new and new[0].batch > before.batch + 1 and before.commit_time_ms < kept_since_ms:
        before = None
    if before is None:
        new = _unbroken(new, kept_since_ms)
    if not new:
        return None
    base = _base(new[0], before)
    if before is None and base is Base.CHANGELOG and new[0].kind in COMPUTING:
        # The oldest record says where the one behind it began.
        if len(new) == 1:
            return None
        before, new = _position(new[0], new[1].ends_before), new[1:]
    # What a move leaves behind is read from the changelog: a run begins with it and ends before the next.
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
    """Without what stands before a hole that compaction may have made."""
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
    """A row per record and source topic, with where the one before it ended; nulls where nothing is known of it."""
    rows: list[dict[str, Any]] = []
    ends: dict[str, int] = dict(run.before.next_offsets) if run.before else {}
    batch: int | None = run.before.batch if run.before else None
    stream_time_ms = run.before.stream_times.task_ms if run.before else None
    commit_time_ms = run.before.commit_time_ms if run.before else None
    for record in run.records:
        if record.kind not in (*COMPUTING, CommitKind.REWIND):
            # Each of the others begins a new life.
            ends, batch, stream_time_ms, commit_time_ms = {}, None, None, None
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
