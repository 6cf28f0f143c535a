"""Reads `<app>-commits`: the last record of each task, from the end backwards, or all records in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Message

from tidemark.commit.record import CommitRecord
from tidemark.kafka.committed_reader import ChangelogBatch, messages_of_ranges, range_reader, read_committed_until
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId, TopicPartition, commits_topic

_FIRST_SPAN = 64
_LAST_SPAN = 1024
_KEY: Any = Message.key
_VALUE: Any = Message.value


def last_commit_records(
    client_config: Mapping[str, Any],
    ends: EndOffsets,
    application_id: str,
    tasks: Collection[TaskId],
    *,
    stalled_after_s: float,
    end_offsets: Mapping[TopicPartition, int] | None = None,
) -> dict[TaskId, CommitRecord]:
    """Return the newest committed record of each task; leave out tasks without one.

    Reads with read_committed to `end_offsets`, by default to the read_uncommitted end (see invariant: end of a restore), so it
    waits for an open transaction. Reads ever larger parts from the end until every task is found or the topic begins. Blocks.
    """
    topic = commits_topic(application_id)
    found: dict[TaskId, CommitRecord] = {}
    wanted: dict[TopicPartition, set[TaskId]] = {}
    for task in sorted(tasks):
        wanted.setdefault(TopicPartition(topic, task.partition), set()).add(task)
    end_of, low_of = end_offsets or ends.of(list(wanted)), ends.beginnings(list(wanted))
    span = _FIRST_SPAN
    while wanted:
        ranges = {each: (max(low_of[each], end_of[each] - span), end_of[each]) for each in wanted}
        newest: dict[TopicPartition, dict[TaskId, bytes | None]] = {partition: {} for partition in wanted}
        for partition, messages in messages_of_ranges(client_config, ranges, stalled_after_s=stalled_after_s):
            newest[partition].update({TaskId.parse(_KEY(m).decode()): _VALUE(m) for m in messages})
        for partition, (start, _) in ranges.items():
            if wanted[partition] <= newest[partition].keys() or start == low_of[partition]:
                # The last record of a task that a rescale removed has no value.
                last = {task: newest[partition].get(task) for task in wanted.pop(partition)}
                found.update({task: CommitRecord.from_bytes(v) for task, v in last.items() if v is not None})
        span *= 4
    return found


def commit_history(
    client_config: Mapping[str, Any],
    ends: EndOffsets,
    application_id: str,
    tasks: Collection[TaskId],
    *,
    stalled_after_s: float,
    from_offsets: Mapping[TopicPartition, int] | None = None,
    end_offsets: Mapping[TopicPartition, int] | None = None,
) -> Iterator[CommitRecord]:
    """Yield every commit record of `tasks` that the topic still holds, for each task in the order of its commits.

    `from_offsets`: partitions that are not read from their beginning. Reads to `end_offsets`, by default to the
    read_uncommitted end as `last_commit_records` does. Records older than the topic's `min.compaction.lag.ms` may be
    missing, except the last record of a task. Blocks; raises `OutcomeUnknown`.
    """
    topic = commits_topic(application_id)
    partitions = sorted({TopicPartition(topic, task.partition) for task in tasks})
    end_of, low_of = end_offsets or ends.of(partitions), ends.beginnings(partitions)
    wanted = {str(task).encode() for task in tasks}
    for partition in partitions:
        batches = read_committed_until(
            client_config,
            partition,
            max(low_of[partition], (from_offsets or {}).get(partition, 0)),
            end_of[partition],
            stalled_after_s=stalled_after_s,
            should_continue=lambda: True,
        )
        for batch in batches:
            for key, value in zip(batch.keys, batch.values, strict=True):
                if value is not None and key in wanted:
                    yield CommitRecord.from_bytes(value)


def oldest_writes(
    client_config: Mapping[str, Any],
    ends: EndOffsets,
    application_id: str,
    wanted: Mapping[TopicPartition, TaskId],
    lows: Mapping[TopicPartition, int],
    since_ms: int,
    *,
    stalled_after_s: float,
) -> dict[TopicPartition, int]:
    """Return an offset of each changelog partition from which on everything was written at `since_ms` or later.

    It is the first such offset if that is below the partition's first offset in `lows`, and otherwise perhaps a later one, at
    or after `lows`. `wanted` names the task of each partition. Partitions whose commit records do not say it are left out.
    Blocks: reads commit records from that time on, of each partition only until its own are found. Raises `OutcomeUnknown`.
    """
    found: dict[TopicPartition, int] = {}
    topic = commits_topic(application_id)
    partitions = sorted({TopicPartition(topic, task.partition) for task in wanted.values()})
    from_offsets, end_offsets = ends.at_time(partitions, since_ms), ends.of(partitions)
    for partition in partitions:
        left = {changelog: task for changelog, task in wanted.items() if task.partition == partition.partition}
        records = commit_history(
            client_config, ends, application_id, set(left.values()),
            stalled_after_s=stalled_after_s, from_offsets=from_offsets, end_offsets=end_offsets,
        )  # fmt: skip
        for record in records:
            if record.commit_time_ms < since_ms:
                continue
            for changelog in [changelog for changelog, task in left.items() if task == record.task]:
                before = record.ends_before.get(changelog.topic, {}).get(changelog.partition)
                # A commit that wrote nothing says as much, unless only the marker of an older transaction came after its end.
                if before is not None and (record.changelogs.get(changelog.topic, 0) or before >= lows[changelog]):
                    found[changelog] = before
                    del left[changelog]
            if not left:
                break
    return found


def last_lost_writes(
    client_config: Mapping[str, Any],
    ends: EndOffsets,
    application_id: str,
    wanted: Mapping[TopicPartition, TaskId],
    lows: Mapping[TopicPartition, int],
    *,
    stalled_after_s: float,
) -> dict[TopicPartition, CommitRecord]:
    """Return the last commit that wrote to each changelog partition below its first offset in `lows`.

    `wanted` names the task of each partition. Partitions whose commit records do not say it are left out. Blocks: reads some
    commit records of each task, as each next look halves the part of the topic in which a commit is, for all its changelogs
    at once. One client reads them all. Raises `OutcomeUnknown`.
    """
    if not wanted:
        return {}
    found: dict[TopicPartition, CommitRecord] = {}
    topic = commits_topic(application_id)
    partitions = sorted({TopicPartition(topic, task.partition) for task in wanted.values()})
    begins, ends_of = ends.beginnings(partitions), ends.of(partitions)
    with range_reader(client_config, f"tidemark-read-{topic}", stalled_after_s=stalled_after_s) as read:
        for task in sorted(set(wanted.values())):
            place = TopicPartition(topic, task.partition)
            own = {changelog: lows[changelog] for changelog, owner in wanted.items() if owner == task}
            records_in = partial(_records_of, read, task, place)
            for span, changelogs in _last_spans(own, (begins[place], ends_of[place]), records_in).items():
                found |= _last_below(changelogs, records_in(*span))
    return found


def _records_of(
    read: Callable[[TopicPartition, int, int], Iterator[ChangelogBatch]],
    task: TaskId,
    place: TopicPartition,
    start: int,
    end: int,
) -> Iterator[CommitRecord]:
    wanted = str(task).encode()
    for batch in read(place, start, end):
        for key, value in zip(batch.keys, batch.values, strict=True):
            if value is not None and key == wanted:
                yield CommitRecord.from_bytes(value)


def _last_spans(
    lows: Mapping[TopicPartition, int],
    whole: tuple[int, int],
    records_in: Callable[[int, int], Iterator[CommitRecord]],
) -> dict[tuple[int, int], dict[TopicPartition, int]]:
    """Return short parts of a commits partition, each with the changelogs whose last commit below their low is in it.

    Looks at the middle of the longest part that is left; the commit that is found there halves the part of every changelog
    that has this middle in its own part.
    """
    spans = dict.fromkeys(lows, whole)
    while True:
        start, end = max(spans.values(), key=lambda span: span[1] - span[0])
        if end - start <= _LAST_SPAN:
            break
        middle = (start + end) // 2
        halved = {changelog: span for changelog, span in spans.items() if span[0] < middle < span[1]}
        firsts = _first_naming(halved, records_in(middle, max(until for _, until in halved.values())))
        for changelog, (since, until) in halved.items():
            first = firsts.get(changelog)
            is_below = first is not None and _begins_below(first, changelog, lows[changelog])
            spans[changelog] = (middle, until) if is_below else (since, middle)
    found: dict[tuple[int, int], dict[TopicPartition, int]] = {}
    for changelog, span in spans.items():
        found.setdefault(span, {})[changelog] = lows[changelog]
    return found


def _first_naming(
    changelogs: Collection[TopicPartition], records: Iterator[CommitRecord]
) -> dict[TopicPartition, CommitRecord]:
    """Return the first commit that names each changelog; reads only until all are found."""
    found: dict[TopicPartition, CommitRecord] = {}
    for record in records:
        found |= {each: record for each in changelogs if each not in found and _names(record, each)}
        if len(found) == len(changelogs):
            break
    return found


def _last_below(
    lows: Mapping[TopicPartition, int], records: Iterator[CommitRecord]
) -> dict[TopicPartition, CommitRecord]:
    """Return the last commit that wrote to each changelog below its first offset; reads only until all begin later."""
    found: dict[TopicPartition, CommitRecord] = {}
    left = dict(lows)
    for record in records:
        for changelog, low in [(each, low) for each, low in left.items() if _names(record, each)]:
            if not _begins_below(record, changelog, low):
                del left[changelog]
            elif record.changelogs.get(changelog.topic, 0):
                found[changelog] = record
        if not left:
            break
    return found


def _names(record: CommitRecord, changelog: TopicPartition) -> bool:
    return changelog.partition in record.ends_before.get(changelog.topic, {})


def _begins_below(record: CommitRecord, changelog: TopicPartition, low: int) -> bool:
    """Whether what a commit wrote to a changelog begins below an offset. A command fills a new changelog from its beginning."""
    return record.has_filled(changelog.topic) or record.ends_before[changelog.topic][changelog.partition] < low
