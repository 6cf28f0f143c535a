"""The stores of an instance's active tasks, for queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

from tidemark.errors import SnapshotReleased
from tidemark.names import TaskId, TopicPartition
from tidemark.queries.errors import QueryInvalid, StateUnavailable
from tidemark.queries.hosts import ASK_AGAIN, CopyState, OpenStore, StoreRestore, not_here, not_yet_here
from tidemark.queries.position import Position, TaskRole
from tidemark.restore.listener import RestoreProgress
from tidemark.stores.protocol import SnapshotStore, Store
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.tasks.task import Task


def _has_snapshots(store: Store) -> TypeGuard[SnapshotStore]:
    # `isinstance` of a protocol takes longer than the snapshot.
    return callable(getattr(store, "snapshot", None))


class RestoreBoard:
    """A `RestoreListener` that keeps the progress of the restores that run."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], StoreRestore] = {}
        self._lock = threading.Lock()

    def running(self) -> list[StoreRestore]:
        """Return the restores that run, sorted by store and partition."""
        with self._lock:
            return [self._running[place] for place in sorted(self._running)]

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._set(progress)

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        self._set(progress)

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._remove(progress)

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._remove(progress)

    def _set(self, progress: RestoreProgress) -> None:
        partition = progress.changelog.partition
        found = StoreRestore(progress.store, partition, progress.next_offset, progress.end_offset, progress.remaining_s)
        with self._lock:
            self._running[progress.store, partition] = found

    def _remove(self, progress: RestoreProgress) -> None:
        with self._lock:
            self._running.pop((progress.store, progress.changelog.partition), None)


class ActiveStores:
    """Implements `StoreHost`. The instance's loop tells which tasks are open; readers take snapshots of their stores."""

    def __init__(
        self,
        holder: str,
        generations: Mapping[str, int],
        owned_epoch: Callable[[TopicPartition], int | None],
        board: RestoreBoard,
    ) -> None:
        """`generations` are those of the changelogs by store. `owned_epoch` is `Ownership.epoch`."""
        self._holder = holder
        self._generations = generations
        self._owned_epoch = owned_epoch
        self._tasks: Mapping[TaskId, Task] = {}
        self._opening: frozenset[TaskId] = frozenset()
        self._board = board

    @property
    def holder(self) -> str:
        return self._holder

    def replace(self, tasks: Iterable[Task], opening: Iterable[TaskId] = ()) -> None:
        """Answer from these tasks from now on; the tasks in `opening` are being restored."""
        self._tasks = {task.id: task for task in tasks}
        self._opening = frozenset(opening)

    def owned(self) -> list[Task]:
        """Return the open tasks that the instance owns now."""
        return [task for task in self._tasks.values() if self._is_owned(task)]

    def copies(self) -> Mapping[TaskId, CopyState]:
        states = {task: self.state_of(task) for task in {*self._tasks, *self._opening}}
        return {task: state for task, state in states.items() if state is not None}

    def state_of(self, task: TaskId) -> CopyState | None:
        held = self._tasks.get(task)
        if held is not None and self._is_owned(held):
            return CopyState.ACTIVE
        return CopyState.RESTORING if task in self._opening else None

    def restores(self) -> list[StoreRestore]:
        return self._board.running()

    def open(self, task: TaskId, store: str) -> OpenStore:
        held = self._tasks.get(task)
        if held is None:
            name = f"instance {self._holder}"
            if task in self._opening:
                raise not_yet_here(name, task, store, self.restores())
            raise not_here(name, task)
        opened = held.stores[store]
        if not _has_snapshots(opened):
            raise QueryInvalid(
                f"store {store} is a custom store without snapshot(), so it cannot be read while its task writes it",
                "give its class a method snapshot(), as tidemark.stores.protocol.SnapshotStore describes it",
            )
        try:
            snapshot = opened.snapshot()
        except SnapshotReleased as released:
            raise StateUnavailable(f"task {task} is leaving instance {self._holder}", ASK_AGAIN) from released
        # Asked after the snapshot was taken: until then, no other instance can have committed for this task.
        if not self._is_owned(held):
            snapshot.release()
            raise StateUnavailable(f"task {task} is leaving instance {self._holder}", ASK_AGAIN)
        checkpoint = snapshot.checkpoint
        offset = 0 if checkpoint is None else checkpoint.changelog_offset
        return OpenStore(
            snapshot,
            Position(
                task=task,
                role=TaskRole.ACTIVE,
                holder=self._holder,
                topology_version=held.topology_version,
                changelog_offset=offset,
                promised_offset=offset,
                # The owner's state is the committed state, so nothing that is committed is missing.
                end_offset=offset,
                lag_records=0,
                lag_ms=0,
                stream_time_ms=NO_STREAM_TIME if checkpoint is None else checkpoint.stream_time_ms,
                batch=held.batch if checkpoint is None else checkpoint.batch,
                generation=self._generations.get(store, 0),
            ),
        )

    def _is_owned(self, task: Task) -> bool:
        return self._owned_epoch(task.lead) == task.epoch
