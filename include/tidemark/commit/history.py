"""Reads `<app>-commits`: the last record of each task, from the end backwards, or all records in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
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
    last_records: Mapping[TaskId, CommitRecord],
    stalled_after_s: float,
) -> dict[TopicPartition, CommitRecord]:
    """Return the last commit that wrote to each changelog partition below its first offset in `lows`.

    `wanted` names the task of each partition, `last_records` are the newest of these tasks. Partitions whose commit records do
    not say it are left out. Blocks: reads some commit records, as each next look halves the part of the topic in which a
    commit is, for all changelogs of that part at once. It reads on until each of their tasks is found, so where one rarely
    commits, it reads all that its neighbours have committed in between, but once for all tasks. One client reads them all.
    Raises `OutcomeUnknown`.
    """
    found: dict[TopicPartition, CommitRecord] = {}
    left: list[_Shortened] = []
    for changelog, task in wanted.items():
        each, last = _Shortened(changelog, task, lows[changelog]), last_records.get(task)
        if last is not None and each.is_named_by(last) and each.has_lost_writes_of(last):
            found[changelog] = last
        else:
            left.append(each)
    if not left:
        return found
    topic = commits_topic(application_id)
    partitions = sorted({TopicPartition(topic, each.task.partition) for each in left})
    begins, ends_of = ends.beginnings(partitions), ends.of(partitions)
    with range_reader(client_config, f"tidemark-read-{topic}", stalled_after_s=stalled_after_s) as read:
        for place in partitions:
            own = [each for each in left if each.task.partition == place.partition]
            records_in = partial(_records_in, read, place)
            for span, of_span in _last_spans(own, (begins[place], ends_of[place]), records_in).items():
                found |= _last_below(of_span, records_in(*span))
    return found


@dataclass(frozen=True)
class _Shortened:
    """A changelog partition, the task that writes it, and its first offset."""

    changelog: TopicPartition
    task: TaskId
    low: int

    @cached_property
    def key(self) -> bytes:
        """The key of its task's commit records."""
        return str(self.task).encode()

    def is_named_by(self, record: CommitRecord) -> bool:
        """Whether a commit of its task says where the changelog ended."""
        return record.task == self.task and self.changelog.partition in record.ends_before.get(self.changelog.topic, {})

    def has_lost_begin_of(self, record: CommitRecord) -> bool:
        """Whether what such a commit wrote begins below the first offset.

        What a command has filled a new changelog with begins at its beginning.
        """
        topic = self.changelog.topic
        return record.has_filled(topic) or record.ends_before[topic][self.changelog.partition] < self.low

    def has_lost_writes_of(self, record: CommitRecord) -> bool:
        """Whether the changelog has lost something that such a commit wrote."""
        return self.has_lost_begin_of(record) and record.changelogs.get(self.changelog.topic, 0) > 0


def _records_in(
    read: Callable[[TopicPartition, int, int], Iterator[ChangelogBatch]], place: TopicPartition, start: int, end: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of commit records. They are not parsed, because most of them are not looked for."""
    for batch in read(place, start, end):
        for key, value in zip(batch.keys, batch.values, strict=True):
            if value is not None:
                yield key, value


def _last_spans(
    shortened: Collection[_Shortened],
    whole: tuple[int, int],
    records_in: Callable[[int, int], Iterator[tuple[bytes, bytes]]],
) -> dict[tuple[int, int], list[_Shortened]]:
    """Return short parts of a commits partition, each with the changelogs whose last commit below their low is in it.

    Looks at the middle of the longest part that is left; the commits that are found there halve the part of every changelog
    that has this middle in its own part.
    """
    spans = dict.fromkeys(shortened, whole)
    while True:
        start, end = max(spans.values(), key=lambda span: span[1] - span[0])
        if end - start <= _LAST_SPAN:
            break
        middle = (start + end) // 2
        halved = {each: span for each, span in spans.items() if span[0] < middle < span[1]}
        firsts = _first_naming(halved, records_in(middle, max(until for _, until in halved.values())))
        for each, (since, until) in halved.items():
            first = firsts.get(each)
            spans[each] = (middle, until) if first is not None and each.has_lost_begin_of(first) else (since, middle)
    found: dict[tuple[int, int], list[_Shortened]] = {}
    for each, span in spans.items():
        found.setdefault(span, []).append(each)
    return found


def _first_naming(
    shortened: Collection[_Shortened], records: Iterator[tuple[bytes, bytes]]
) -> dict[_Shortened, CommitRecord]:
    """Return the first commit that names each changelog; reads only until all are found."""
    found: dict[_Shortened, CommitRecord] = {}
    for left, record in _of_tasks(shortened, records):
        named = [each for each in left if each.is_named_by(record)]
        found |= dict.fromkeys(named, record)
        left.difference_update(named)
    return found


def _last_below(
    shortened: Collection[_Shortened], records: Iterator[tuple[bytes, bytes]]
) -> dict[TopicPartition, CommitRecord]:
    """Return the last commit that wrote to each changelog below its first offset; reads only until all begin later."""
    found: dict[TopicPartition, CommitRecord] = {}
    for left, record in _of_tasks(shortened, records):
        named = [each for each in left if each.is_named_by(record)]
        found |= {each.changelog: record for each in named if each.has_lost_writes_of(record)}
        left.difference_update(each for each in named if not each.has_lost_begin_of(record))
    return found


def _of_tasks(
    shortened: Collection[_Shortened], records: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[set[_Shortened], CommitRecord]]:
    """Yield each commit of the tasks of these changelogs, with the changelogs: the caller removes those that are done.

    Ends when none is left.
    """
    left = set(shortened)
    for key, value in records:
        if any(each.key == key for each in left):
            yield left, CommitRecord.from_bytes(value)
            if not left:
                return
