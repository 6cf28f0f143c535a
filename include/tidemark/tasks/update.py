"""What one batch does to one task: prepared before the transaction, written in it, applied after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.names import TaskId
from tidemark.stores.protocol import Writes


@dataclass(frozen=True)
class StoreUpdate:
    """New values of one store; `changelog` is the topic they are logged to."""

    store: str
    changelog: str
    writes: tuple[Writes, ...]
    first_live_segment: int | None

    @property
    def records(self) -> int:
        """How many keys change."""
        return sum(len(write.keys) for write in self.writes)


@dataclass(frozen=True)
class Output:
    """Records for one sink topic, partitioned by key. Messages are `{"key": …, "value": …}`, as produce_batch takes them."""

    topic: str
    messages: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class DeadLetter:
    """One record that cannot be processed, as it was read, and why."""

    reason: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class TaskUpdate:
    """Everything one batch changes for one task. Offsets are of the task's source partition."""

    task: TaskId
    batch: int
    source_topic: str
    start_offset: int
    end_offset: int
    stream_time_ms: int
    rows: int
    late_rows: int
    bad_rows: int
    filtered_rows: int
    stores: tuple[StoreUpdate, ...]
    outputs: tuple[Output, ...]
    dead_letters: tuple[DeadLetter, ...]

    @property
    def records(self) -> int:
        """Records that the transaction will hold for this task, its commit record aside."""
        return (
            sum(update.records for update in self.stores)
            + sum(len(output.messages) for output in self.outputs)
            + len(self.dead_letters)
        )

    def sink_counts(self, dlq: str) -> Mapping[str, int]:
        """Records by sink topic, the dead letters' among them."""
        counts: dict[str, int] = {}
        for output in self.outputs:
            counts[output.topic] = counts.get(output.topic, 0) + len(output.messages)
        if self.dead_letters:
            counts[dlq] = len(self.dead_letters)
        return counts
