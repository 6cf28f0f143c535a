"""The copies of a standby, for queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from tidemark.errors import SnapshotReleased
from tidemark.names import TaskId
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import ASK_AGAIN, CopyState, OpenStore, StoreRestore, not_here, not_yet_here
from tidemark.queries.position import Position, TaskRole
from tidemark.standby.store_replica import FollowedStore


class StandbyStores:
    """Implements `StoreHost`. The standby's loop tells which copies it follows; readers take snapshots of them."""

    def __init__(self, holder: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` returns seconds. Ages are measured with it, because a clock that was set back would make them 0."""
        self._holder = holder
        self._monotonic = monotonic
        self._copies: Mapping[tuple[TaskId, str], FollowedStore] = {}

    @property
    def holder(self) -> str:
        return self._holder

    def replace(self, copies: Iterable[FollowedStore]) -> None:
        """Answer from these copies from now on."""
        self._copies = {(copy.task, copy.job.spec.name): copy for copy in copies}

    @property
    def followed(self) -> list[FollowedStore]:
        """The copies that are followed now."""
        return list(self._copies.values())

    def copies(self) -> Mapping[TaskId, CopyState]:
        found = dict.fromkeys((task for task, _ in self._copies), CopyState.STANDBY)
        return found | {task: CopyState.RESTORING for (task, _), copy in self._copies.items() if not copy.is_whole}

    def state_of(self, task: TaskId) -> CopyState | None:
        return self.copies().get(task)

    def restores(self) -> list[StoreRestore]:
        return [
            StoreRestore(name, task.partition, copy.next_offset, copy.bounds.end_offset, None)
            for (task, name), copy in self._copies.items()
            if copy.fault is None and copy.checkpoint is not None and not copy.is_whole
        ]

    def open(self, task: TaskId, store: str) -> OpenStore:
        copy = self._copies.get((task, store))
        if copy is None:
            raise not_here(self._holder, task)
        if copy.checkpoint is None:
            raise not_here(self._holder, task) if copy.fault is None else self._not_followed(task, copy.fault)
        try:
            replica = copy.snapshot()
        except SnapshotReleased as released:
            raise StateUnavailable(f"{self._holder} is closing its copy of task {task}", ASK_AGAIN) from released
        if replica.fault is not None:
            replica.snapshot.release()
            raise self._not_followed(task, replica.fault)
        if not replica.is_whole:
            replica.snapshot.release()
            raise not_yet_here(self._holder, task, store, self.restores())
        checkpoint = replica.checkpoint
        return OpenStore(
            replica.snapshot,
            Position(
                task=task,
                role=TaskRole.STANDBY,
                holder=self._holder,
                topology_version=checkpoint.topology_version,
                changelog_offset=checkpoint.changelog_offset,
                promised_offset=replica.records_end,
                end_offset=max(replica.end_offset, checkpoint.changelog_offset),
                lag_records=max(0, replica.end_offset - checkpoint.changelog_offset),
                lag_ms=self._age_ms(replica.complete_s),
                stream_time_ms=checkpoint.stream_time_ms,
                batch=None,
                generation=copy.job.spec.generation,
                end_age_ms=self._age_ms(replica.asked_s),
            ),
        )

    def _age_ms(self, at_s: float) -> int:
        return round((self._monotonic() - at_s) * 1000)

    def _not_followed(self, task: TaskId, fault: str) -> StateUnavailable:
        return StateUnavailable(
            f"the copy of task {task} in {self._holder} is no longer followed: {fault}",
            "start an instance, which reports what is lost and how to repair it",
        )
