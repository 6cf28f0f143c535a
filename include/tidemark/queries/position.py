"""The position of an answer in the history of its task, and the bounds that a caller sets for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidemark.names import TaskId
from tidemark.queries.errors import PositionGone, QueryInvalid, StateUnavailable

UNHEARD_MS = 60_000
"""After so long without an answer from Kafka, a standby does not know how far its copies lag, nor whose they are."""
_PART = re.compile(r"(\d{1,9}_\d{1,9})(?:@(\d{1,18})|:(\d{1,18})(?:\.(\d{1,9}))?)")


class TaskRole(StrEnum):
    """The role of a task's copy, as in Kafka Streams."""

    ACTIVE = "active"
    STANDBY = "standby"


@dataclass(frozen=True)
class Position:
    """The state that an answer shows.

    Offsets are next offsets of the store's changelog. They count transaction markers, so a difference of two is at least the
    number of records between them. `promised_offset` is what others must have reached to be as new: the end of the last
    record, without the transaction marker after it, which an active task does not count. `batch` is the task's last committed
    batch, None in a standby, which does not know it. `lag_ms` is the age of the newest time at which the copy is known to have
    been complete, `end_age_ms` that of the time at which `end_offset` was read.
    """

    task: TaskId
    role: TaskRole
    holder: str
    topology_version: str
    changelog_offset: int
    promised_offset: int
    end_offset: int
    lag_records: int
    lag_ms: int
    stream_time_ms: int
    batch: int | None
    generation: int
    end_age_ms: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        # `asdict` would copy every value, which takes as long as reading a key.
        return {**vars(self), "task": str(self.task)}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Position:
        """Read what `to_dict` returned."""
        return cls(**{**body, "task": TaskId.parse(body["task"]), "role": TaskRole(body["role"])})


@dataclass(frozen=True)
class ChangelogOffset:
    """A next offset of a changelog. An upgrade or rescale that writes a changelog again makes the next generation of it.

    It is written `4711`, or `4711.2` in generation 2.
    """

    offset: int
    generation: int = 0

    def __str__(self) -> str:
        return f"{self.offset}.{self.generation}" if self.generation else str(self.offset)


def position_token(positions: Iterable[Position]) -> str:
    """Return the text that `at_least` accepts: `0_1:4711` for each task, separated by commas."""
    return offsets_token({each.task: ChangelogOffset(each.promised_offset, each.generation) for each in positions})


def offsets_token(offsets: Mapping[TaskId, ChangelogOffset]) -> str:
    """Return the same for offsets by task."""
    return ",".join(f"{task}:{offset}" for task, offset in sorted(offsets.items()))


def parse_position(text: str) -> tuple[dict[TaskId, ChangelogOffset], dict[TaskId, int]]:
    """Read `0_1:4711` (changelog offset) and `0_1@17` (batch of a commit record), with commas between them.

    Returns offsets and batches by task. Raises `QueryInvalid`.
    """
    offsets: dict[TaskId, ChangelogOffset] = {}
    batches: dict[TaskId, int] = {}
    for part in filter(None, text.split(",")):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise QueryInvalid(
                f"the position has the part {part!r}, which is no position",
                "pass the position of an earlier answer such as 0_1:4711, or task and batch of a commit record: 0_1@17",
            )
        task, batch, offset, generation = found.groups()
        if batch is not None:
            batches[TaskId.parse(task)] = int(batch)
        else:
            offsets[TaskId.parse(task)] = ChangelogOffset(int(offset), int(generation or 0))
    return offsets, batches


@dataclass(frozen=True)
class ReadBounds:
    """What a caller requires of an answer; None or nothing requires nothing.

    `least_offsets` and `least_batches` are by task: an answer must contain at least the changelog up to that next offset, and
    that committed batch.
    """

    max_lag_records: int | None = None
    max_lag_ms: int | None = None
    least_offsets: Mapping[TaskId, ChangelogOffset] = field(default_factory=dict)
    least_batches: Mapping[TaskId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, max_lag_records: int | None, max_lag_ms: int | None, at_least: str) -> ReadBounds:
        """Return the bounds with the position `at_least`, as `parse_position` reads it. Raises `QueryInvalid`."""
        return cls(max_lag_records, max_lag_ms, *parse_position(at_least))

    def require(self, position: Position) -> None:
        """Raise `PositionGone` or `StateUnavailable` unless an answer from this position is acceptable."""
        least = self.least_offsets.get(position.task)
        if least is not None and least.generation < position.generation:
            raise PositionGone(
                f"at_least {position.task}:{least} is of generation {least.generation} of the changelog, which an upgrade, "
                f"rescale, reset or repair has replaced by generation {position.generation}",
                "ask without at_least once, and pass the position of that answer from then on",
            )
        why = self.refusal(position)
        if why is not None:
            raise StateUnavailable(why, "ask again, or accept an older answer")

    def refusal(self, position: Position) -> str | None:
        """Return why an answer from this position is not fresh enough; None if it is."""
        where = f"{position.role} task {position.task} of {position.holder}"
        if self.max_lag_records is not None and position.lag_records > self.max_lag_records:
            return f"{where} lags by {position.lag_records} records, max_lag_records is {self.max_lag_records}"
        if self.max_lag_records is not None and position.end_age_ms > UNHEARD_MS:
            return f"{where} has not heard from Kafka for {position.end_age_ms} ms, so its lag in records is not known"
        if self.max_lag_ms is not None and position.lag_ms > self.max_lag_ms:
            return f"{where} lags by {position.lag_ms} ms, max_lag_ms is {self.max_lag_ms}"
        least = self.least_offsets.get(position.task, ChangelogOffset(0, position.generation))
        at = ChangelogOffset(position.changelog_offset, position.generation)
        if (at.generation, at.offset) < (least.generation, least.offset):
            return f"{where} is at changelog offset {at}, at_least is {least}"
        batch = self.least_batches.get(position.task)
        if batch is not None and (position.batch is None or position.batch < batch):
            known = "does not know its batch" if position.batch is None else f"is at batch {position.batch}"
            return f"{where} {known}, at_least is batch {batch}"
        return None
