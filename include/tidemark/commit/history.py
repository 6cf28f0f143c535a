"""Reads `<app>-commits`: the last record of each task, from the end backwards, or all records in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Message

from tidemark.commit.record import WRITE_IN_ONE_TRANSACTION, CommitRecord
from tidemark.kafka.committed_reader import messages_of_ranges, read_committed_until
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
    commit records per changelog, as each next look halves the part of the topic in which the commit is. Raises
    `OutcomeUnknown`.
    """
    found: dict[TopicPartition, CommitRecord] = {}
    topic = commits_topic(application_id)
    partitions = sorted({TopicPartition(topic, task.partition) for task in wanted.values()})
    begins, ends_of = ends.beginnings(partitions), ends.of(partitions)
    for changelog, task in wanted.items():
        place, low = TopicPartition(topic, task.partition), lows[changelog]
        history = partial(commit_history, client_config, ends, application_id, {task}, stalled_after_s=stalled_after_s)
        start, end = begins[place], ends_of[place]
        while end - start > _LAST_SPAN:
            middle = (start + end) // 2
            first = next(_naming(changelog, history(from_offsets={place: middle}, end_offsets={place: end})), None)
            if first is not None and _begins_below(first, changelog, low):
                start = middle
            else:
                end = middle
        for record in _naming(changelog, history(from_offsets={place: start}, end_offsets={place: end})):
            if not _begins_below(record, changelog, low):
                break
            if record.changelogs.get(changelog.topic, 0):
                found[changelog] = record
    return found


def _naming(changelog: TopicPartition, records: Iterator[CommitRecord]) -> Iterator[CommitRecord]:
    return (each for each in records if changelog.partition in each.ends_before.get(changelog.topic, {}))


def _begins_below(record: CommitRecord, changelog: TopicPartition, low: int) -> bool:
    """Whether what a commit wrote to a changelog begins below an offset. A command fills a new changelog from its beginning."""
    is_fill = record.kind not in WRITE_IN_ONE_TRANSACTION and record.changelogs.get(changelog.topic, 0) > 0
    return is_fill or record.ends_before[changelog.topic][changelog.partition] < low
