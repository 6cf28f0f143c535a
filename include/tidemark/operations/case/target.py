"""The target of a restore: the latest state, or a time or source offsets to go back to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.commit.record import CommitRecord
from tidemark.errors import StartRefused
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.times import parse_time

LATEST = "latest"
_OFFSET = re.compile(r"^\s*(?P<topic>[\w.\-]+)\[(?P<partition>\d+)\]\s*=\s*(?P<offset>\d+)\s*$")


@dataclass(frozen=True)
class Latest:
    """The state as it was last committed."""


@dataclass(frozen=True)
class PointInTime:
    """A time, in epoch milliseconds."""

    at_ms: int


@dataclass(frozen=True)
class Offsets:
    """The last time at which none of these source partitions was beyond its next offset given here."""

    next_offsets: Mapping[TopicPartition, int]


Target = Latest | PointInTime | Offsets


def parse_target(text: str, now_ms: int) -> Target:
    """Parse `latest`, a time as `tidemark rewind run --to` takes it, or `topic[0]=120,topic[1]=90`.

    Raises `ValueError` with a message for the user.
    """
    if text.strip() == LATEST:
        return Latest()
    if "=" not in text:
        try:
            return PointInTime(parse_time(text, now_ms))
        except ValueError as error:
            raise ValueError(f"{error}; or write latest, or offsets as topic[0]=120,topic[1]=90") from error
    found: dict[TopicPartition, int] = {}
    for part in text.split(","):
        written = _OFFSET.match(part)
        if written is None:
            raise ValueError(f"{part.strip()!r} is not a source offset: write topic[0]=120,topic[1]=90")
        found[TopicPartition(written["topic"], int(written["partition"]))] = int(written["offset"])
    return Offsets(found)


def moment_of_offsets(records: Iterable[CommitRecord], wanted: Mapping[TopicPartition, int]) -> int:
    """Return the last time (epoch milliseconds) at which no partition of `wanted` had been committed beyond its offset.

    `records` are those of the commits topic, each task's in the order of its commits. Raises `StartRefused` if no task
    reads a partition, if the remaining records do not show it at or below its offset, or if no partition was ever
    beyond it.
    """
    last_ms: dict[TopicPartition, int] = {}
    beyond_ms: dict[TopicPartition, int] = {}
    seen: set[TopicPartition] = set()
    for record in records:
        for partition, offset in _reached(record):
            if partition not in wanted:
                continue
            seen.add(partition)
            if offset <= wanted[partition]:
                # A rewind goes back: what was beyond the offset before it no longer counts.
                beyond_ms.pop(partition, None)
                last_ms[partition] = record.commit_time_ms
            else:
                beyond_ms.setdefault(partition, record.commit_time_ms)
    for partition, offset in wanted.items():
        if partition not in seen:
            raise StartRefused(
                f"no task has committed offsets of {partition}: name source partitions of this application"
            )
        if partition not in last_ms:
            raise StartRefused(
                f"no remaining commit record has {partition} at or before {offset}: give a higher offset, or a time"
            )
    if not beyond_ms:
        raise StartRefused("no partition has been read beyond the given offsets: there is nothing to go back from")
    return min(beyond_ms.values()) - 1


def _reached(record: CommitRecord) -> list[tuple[TopicPartition, int]]:
    task: TaskId = record.task
    return [(TopicPartition(topic, task.partition), offset) for topic, offset in record.end_offsets.items()]
