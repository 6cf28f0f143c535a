"""What an instance counts: after each batch, each abort, and each event. Nothing is done per record."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from tidemark.clock import Period
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted, TidemarkError
from tidemark.events.event import Rebalance, Waiting
from tidemark.instance.commit_listener import PreparedBatch
from tidemark.metrics import table
from tidemark.metrics.counters import Counters
from tidemark.metrics.metric import Readings
from tidemark.names import dlq_topic
from tidemark.restore.listener import RestoreProgress
from tidemark.supervision.state import InstanceState
from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate

_MAX_SPAN_MS = 60_000
_REASON = attrgetter("reason")


@dataclass
class RecentMaximum:
    """The largest value of the last minute; for up to another minute, an older one may still count."""

    _begin_ms: int = 0
    _now: float = 0.0
    _before: float = 0.0

    def add(self, now_ms: int, value: float) -> None:
        """Add a value at `now_ms` (epoch milliseconds)."""
        self._move_to(now_ms)
        self._now = max(self._now, value)

    def value(self, now_ms: int) -> float:
        """Return the maximum at `now_ms`; 0 if nothing was added in the last two minutes."""
        self._move_to(now_ms)
        return max(self._now, self._before)

    def _move_to(self, now_ms: int) -> None:
        begin_ms = now_ms // _MAX_SPAN_MS * _MAX_SPAN_MS
        if begin_ms != self._begin_ms:
            self._before = self._now if begin_ms == self._begin_ms + _MAX_SPAN_MS else 0.0
            self._begin_ms, self._now = begin_ms, 0.0


@dataclass
class _Present:
    """Values that are replaced. Times are epoch milliseconds, None before the first."""

    state: InstanceState = InstanceState.CREATED
    state_since_ms: int | None = None
    rebalanced_ms: int | None = None
    committed_ms: int | None = None
    is_waiting: bool = False
    longest_commit: RecentMaximum = field(default_factory=RecentMaximum)


class InstanceCounters:
    """An `InstanceListener` and a `CommitListener` that counts. Called by the task loop and restores; read by scrapes."""

    def __init__(self, application_id: str, clock: Callable[[], int]) -> None:
        """`clock` returns epoch milliseconds."""
        self._dlq = dlq_topic(application_id)
        self._clock = clock
        self._sums = Counters()
        self._present = _Present()
        self._restored: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        # Present from the start, so that the first one is seen as an increase.
        for metric in (
            table.REBALANCES,
            table.COMMIT_ABORTS,
            table.COMMIT_LATENCY,
            table.BROKER_WAITS,
            table.BROKER_WAIT,
        ):
            self._sums.add(metric, 0)
        for kind in (CommitKind.START, CommitKind.BATCH, CommitKind.TICK):
            self._sums.add(table.COMMITS, 0, kind)

    def committed(self, batch: PreparedBatch, took: Period) -> None:
        """Count one transaction, after its stores were written."""
        now_ms = self._clock()
        self._sums.add(table.COMMITS, 1, batch.kind)
        self._sums.add(table.COMMIT_LATENCY, took.seconds)
        with self._lock:
            self._present.committed_ms = now_ms
            self._present.longest_commit.add(now_ms, took.seconds)
        for task, update in batch.updates:
            self._count_task(update)
            self._count_stores(task, update)

    def aborted(self, took: Period, aborted: BatchAborted) -> None:
        """Count a transaction that was aborted."""
        self._sums.add(table.COMMIT_ABORTS, 1)

    def discarded(self, batch: PreparedBatch, error: TidemarkError) -> None: ...

    def _count_task(self, update: TaskUpdate) -> None:
        add, task = self._sums.add, str(update.task)
        add(table.PROCESS_BATCHES, 1, task)
        add(table.PROCESS_RECORDS, update.rows + update.filtered_rows + update.bad_rows, task)
        add(table.PROCESS_LATENCY, update.prepared.seconds, task)
        add(table.STATE_ROWS, update.rows, task)
        add(table.FILTERED_RECORDS, update.filtered_rows, task)
        add(table.DROPPED_RECORDS, update.late_rows, task, "late")
        add(table.DROPPED_RECORDS, update.bad_rows, task, "bad")
        for reason, letters in Counter(map(_REASON, update.dead_letters)).items():
            add(table.DEAD_LETTERS, letters, task, reason)
        for topic, records in update.sink_counts(self._dlq).items():
            add(table.PRODUCED_RECORDS, records, task, topic)

    def _count_stores(self, task: Task, update: TaskUpdate) -> None:
        add, name = self._sums.add, str(update.task)
        for store in update.stores:
            add(table.STORE_PUTS, store.records, name, store.store)
            add(table.STORE_GETS, store.reads.get_records, name, store.store)
            add(table.STORE_GET_CALLS, store.reads.get_calls, name, store.store)
            add(table.STORE_GET_LATENCY, store.reads.get_ns / 1e9, name, store.store)
            add(table.STORE_RANGES, store.reads.range_calls, name, store.store)
        for written, put in task.puts.items():
            add(table.STORE_PUT_CALLS, 1, name, written)
            add(table.STORE_PUT_LATENCY, put.seconds, name, written)

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        with self._lock:
            self._present.state, self._present.state_since_ms = new, self._clock()

    def on_failure(self, failure: BaseException) -> None: ...

    def on_rebalance(self, rebalance: Rebalance) -> None:
        self._sums.add(table.REBALANCES, 1)
        with self._lock:
            self._present.rebalanced_ms = self._clock()

    def on_waiting(self, waiting: Waiting) -> None:
        with self._lock:
            self._present.is_waiting = waiting.waited_s is None
        if waiting.waited_s is not None:
            self._sums.add(table.BROKER_WAITS, 1)
            self._sums.add(table.BROKER_WAIT, waiting.waited_s)

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._count_restored(progress)

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        self._count_restored(progress)

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._count_restored(progress, is_over=True)
        self._sums.add(table.RESTORES, 1, progress.store)
        self._sums.add(table.RESTORE_DURATION, progress.elapsed_s, progress.store)

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._count_restored(progress, is_over=True)

    def _count_restored(self, progress: RestoreProgress, *, is_over: bool = False) -> None:
        """Count the records since the last report of this restore, whose own number begins at 0 again when it starts again."""
        place = (progress.store, progress.changelog.partition)
        with self._lock:
            counted = min(self._restored.get(place, 0), progress.records)
            self._restored[place] = progress.records
            if is_over:
                del self._restored[place]
        self._sums.add(table.RESTORE_RECORDS, progress.records - counted, progress.store)

    def read(self, readings: Readings) -> None:
        """Add everything to the values of a scrape."""
        self._sums.read(readings)
        with self._lock:
            present = self._present
            for state in InstanceState:
                readings.add(table.STATE, int(state is present.state), state)
            readings.add(table.WAITING_FOR_BROKERS, int(present.is_waiting))
            readings.add(table.COMMIT_LATENCY_MAX, present.longest_commit.value(self._clock()))
            for metric, time_ms in (
                (table.STATE_SINCE, present.state_since_ms),
                (table.LAST_REBALANCE, present.rebalanced_ms),
                (table.LAST_COMMIT, present.committed_ms),
            ):
                if time_ms is not None:
                    readings.add(metric, time_ms / 1000)
