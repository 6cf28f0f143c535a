"""What a process offers to queries: the stores that it holds, open for reading, and how far the others are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from tidemark.names import TaskId
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.position import Position
from tidemark.stores.protocol import StoreSnapshot

ASK_AGAIN = "ask again"


class CopyState(StrEnum):
    """The state of a task's copy in one process. Only an active one has the newest contents."""

    ACTIVE = "active"
    RESTORING = "restoring"
    STANDBY = "standby"


@dataclass(frozen=True)
class StoreRestore:
    """The progress of the restore of one store. Offsets are those of its changelog."""

    store: str
    partition: int
    next_offset: int
    end_offset: int
    remaining_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        left = "" if self.remaining_s is None else f", {self.remaining_s:.0f} s left"
        return f"store {self.store} of partition {self.partition} is at offset {self.next_offset} of {self.end_offset}{left}"


@dataclass(frozen=True)
class OpenStore:
    """A store of one task, open for reading, and the position that the snapshot has."""

    snapshot: StoreSnapshot
    position: Position


class StoreHost(Protocol):
    """The tasks that one process holds. Every method may be called by any thread."""

    @property
    def holder(self) -> str:
        """The name of the process: an instance's number, or `standby-0`."""

    def copies(self) -> Mapping[TaskId, CopyState]:
        """Return the state of each task's copy here."""

    def state_of(self, task: TaskId) -> CopyState | None:
        """Return the state of one task's copy here; None if there is none."""

    def restores(self) -> list[StoreRestore]:
        """Return the restores that run here."""

    def open(self, task: TaskId, store: str) -> OpenStore:
        """Open a store for reading; the caller releases the snapshot. Raises `StateUnavailable`, `QueryInvalid`."""


@contextmanager
def opened(host: StoreHost, task: TaskId, store: str) -> Iterator[OpenStore]:
    """Open a store for reading, and release it at the end. Raises as `StoreHost.open`."""
    found = host.open(task, store)
    try:
        yield found
    finally:
        found.snapshot.release()


def not_here(holder: str, task: TaskId) -> StateUnavailable:
    """Return the error for a task that a process does not hold."""
    return StateUnavailable(f"{holder} does not hold task {task}", ASK_AGAIN)


def not_yet_here(holder: str, task: TaskId, store: str, restores: Sequence[StoreRestore]) -> StateUnavailable:
    """Return the error for a store of a task that a process restores."""
    return StateUnavailable(f"{holder} restores task {task}: {restore_progress(task, store, restores)}", ASK_AGAIN)


def restore_progress(task: TaskId, store: str, restores: Sequence[StoreRestore]) -> str:
    """Return how far the restore of a task's store has come.

    No other store is named, because the caller may not be allowed to read it.
    """
    of_partition = [each for each in restores if each.partition == task.partition]
    for each in of_partition:
        if each.store == store:
            return str(each)
    return "it restores other stores first" if of_partition else "it opens the stores"
