"""One instance of an application: its lock, its member, its producer, its tasks, and the loop over batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.clock import Period, monotonic_ms
from tidemark.commit.commit import Committer, TasksRevoked
from tidemark.commit.record import CommitKind
from tidemark.errors import (
    BatchAborted,
    BatchTooLarge,
    InstanceFenced,
    OutcomeUnknown,
    ProducerFenced,
    SparkEnded,
    TidemarkError,
)
from tidemark.events.event import Waiting
from tidemark.events.listeners import Listeners
from tidemark.failpoint import Probe
from tidemark.instance.commit_listener import CommitListener, PreparedBatch
from tidemark.instance.resolve_plan import await_session_end
from tidemark.instance.source import AttachedSource, BatchSource, SourceBatch
from tidemark.instance.source_watch import SourceWatch, grown
from tidemark.instance.transaction_capacity import BatchSize, TransactionCapacity, split_by_capacity
from tidemark.kafka.availability import find_outage, needed_by_commits, needed_topics
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.member import Member
from tidemark.kafka.purge import RepartitionPurge
from tidemark.kafka.second_copy import Holder, SecondCopyCheck
from tidemark.names import TaskId, TopicPartition
from tidemark.queries.active_stores import ActiveStores
from tidemark.queries.service import QueryService
from tidemark.registry.description_watch import DescriptionWatch
from tidemark.restore.restorer import RestoreSuspended
from tidemark.restore.task_opener import Assignment, TaskOpener
from tidemark.savepoints.final import LastSavepoint
from tidemark.savepoints.snapshot import SavepointTaker
from tidemark.settings import Settings
from tidemark.stores.directory import InstanceDirectory
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage
from tidemark.supervision.run_file import RunFile
from tidemark.supervision.state import InstanceState, StateMachine
from tidemark.tasks.partials import rows_of_partition
from tidemark.tasks.task import Task, TaskInput, close_tasks
from tidemark.tasks.update import TaskUpdate
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_LOOK_S = 1.0
_COMMIT_TRIES = 5
_LISTENERS_CLOSE_S = 5.0
_VERDICT_SESSIONS = 0.4
_NONE_SEEN = -1
_COMMIT_AGAIN_MS = 86_400_000
"""The age at which offsets are committed again; brokers delete them after 7 days (`offsets.retention.minutes`)."""
_JVM_ENDED_LOAD = 4.0
"""A batch during which Spark's JVM ended is taken to be this many times too large, because each try costs a relaunch."""


class _Rate:
    """Source records per second over the last ten seconds. `clock` returns milliseconds and is never set back."""

    _SPAN_MS = 10_000

    def __init__(self, clock: Callable[[], int] = monotonic_ms) -> None:
        self._clock = clock
        self._samples: list[tuple[int, int]] = []

    def add(self, records: int) -> None:
        self._samples.append((self._clock(), records))

    def per_second(self) -> float:
        now_ms = self._clock()
        self._samples = [s for s in self._samples if s[0] > now_ms - self._SPAN_MS]
        return round(sum(records for _, records in self._samples) * 1000 / self._SPAN_MS, 1)


@dataclass(eq=False, repr=False)
class Instance:
    """Runs until it is stopped or an error ends it; `close` releases everything. `make_instance` assembles it.

    `plan` is the topology as the last upgrade or rescale has left it, `partitions` the counts by topic. With `has_grown`, a
    routed source has partitions that no commit knows. `description` is the state by which `plan` was made. `changed` is set
    when the group changes the assignment; `lock` covers that and the commit.
    """

    settings: Settings
    number: int
    plan: TopologyPlan
    partitions: Mapping[str, int]
    has_grown: bool
    description: DescriptionWatch
    clock: Callable[[], int]
    probe: Probe
    admin: AdminClient
    directory: InstanceDirectory
    run_file: RunFile
    size: BatchSize
    capacity: TransactionCapacity
    listeners: Listeners
    states: StateMachine
    lock: threading.RLock
    changed: threading.Event
    member: Member
    second_copy: SecondCopyCheck
    committer: Committer
    attached: AttachedSource
    source_watch: SourceWatch
    opener: TaskOpener
    savepoints: SavepointTaker
    last_savepoint: LastSavepoint
    purge: RepartitionPurge
    active_stores: ActiveStores
    commit_listeners: tuple[CommitListener, ...]
    queries: QueryService
    _stop: threading.Event = field(init=False, default_factory=threading.Event)
    _seen_changes: int = field(init=False, default=_NONE_SEEN)
    _tasks: dict[TopicPartition, Task] = field(init=False, default_factory=dict)
    _rate: _Rate = field(init=False, default_factory=_Rate)

    @property
    def folder(self) -> Path:
        """Return this instance's own folder, which its process lock protects."""
        return self.directory.folder

    def is_awaited(self) -> bool:
        """Return whether no other instance processes the tasks that this one gets when it joins the group.

        True if the group still has the member of this instance, or has no member at all. False if the group's coordinator does
        not answer, because others may be at work. Blocks for `broker_timeout_ms` at most; never raises.
        """
        found = self.second_copy.look_before_join()
        return found is not None and (found.is_empty or found.member_id is not None)

    def run(self, source: BatchSource, stop: threading.Event) -> None:
        """Process until `stop` is set. Blocks. Raises the `TidemarkError` whose `exit_code` tells the supervisor what to do."""
        self.attached.source, self._stop = source, stop
        self.committer.init(stalled_after(self.settings))
        if self.has_grown:
            await_session_end(self.admin, self.plan.application_id, self.number, self.settings, stop)
        self.second_copy.look_before_join()
        if stop.is_set():
            # If it joined now and was given tasks, nobody would process these until the session of its member ends.
            self.states.to(InstanceState.PENDING_SHUTDOWN)
            return
        self.member.start()
        self.queries.start()
        self.states.to(InstanceState.REBALANCING)
        try:
            try:
                self._work(stop)
            except ProducerFenced:
                self.active_stores.replace([])
                # Only the group knows whether another member has joined (see invariant: exit codes). It joins at once, and the
                # reply to the next heartbeat says so.
                self.member.await_verdict(_VERDICT_SESSIONS * self.settings.session_timeout_ms / 1000)
                raise
        except InstanceFenced as fenced:
            # The other copy may commit by now, so what this one holds is no longer the committed state.
            self.active_stores.replace([])
            self.attached.source.stop()
            log.warning("fenced: asking the group whether another copy of this instance lives: %s", fenced)
            holder = self.second_copy.holder(stop)
            if holder is Holder.COPY:
                raise
            raise OutcomeUnknown(
                f"the group has replaced the member of this instance by another one, and {holder.value}; the instance starts "
                f"again ({fenced})"
            ) from fenced

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.member.check()
            if self.changed.is_set():
                self.changed.clear()
                self._reconcile(stop)
                continue
            batch = self._next_batch() if self._tasks else None
            self.source_watch.begin()
            if batch is not None:
                self._process(batch)
            elif not self._tasks:
                self.changed.wait(_WAIT_S)
            # Also while batches wait: under a backlog there is always one, and tasks without input must tick as well.
            self._tick()
            self.savepoints.run(self._tasks.values())
            self.purge.run({p: offset for task in self._tasks.values() for p, offset in task.sources.items()})
            self.run_file.update({"records_per_second": self._rate.per_second()})
        self.states.to(InstanceState.PENDING_SHUTDOWN)
        self.savepoints.close()
        with self.lock:
            held = self.member.ownership.held()
        self.last_savepoint.take([task for p, task in self._tasks.items() if held.get(p) == task.epoch])

    def _reconcile(self, stop: threading.Event) -> None:
        """Open and close tasks to match the group's assignment, then read again from explicit offsets."""
        with self.lock:
            changes = self.member.ownership.changes
            held = self.member.ownership.held()
        kept = {p for p, task in self._tasks.items() if held.get(p) == task.epoch}
        missing = [self._assignment(p, epoch) for p, epoch in sorted(held.items()) if p not in kept]
        if changes == self._seen_changes:
            return
        is_opened_again, self._seen_changes = self._seen_changes == _NONE_SEEN, changes
        if not is_opened_again and not missing and kept == self._tasks.keys():
            # A rebalance for other members: this one keeps its tasks, its source and the batches that are computed.
            self._report_rebalance()
            return
        self.states.to(InstanceState.REBALANCING)
        self.attached.source.stop()
        gone = [self._tasks.pop(partition) for partition in list(self._tasks) if partition not in kept]
        self.active_stores.replace(self._tasks.values(), [a.task for a in missing])
        close_tasks(gone)
        self.probe("rebalance")
        if missing:
            self._require_same_description()
            self.states.to(InstanceState.RESTORING)
            try:
                opened = self.opener.open(missing, lambda a: not stop.is_set() and self._still_ours(a))
            except RestoreSuspended as error:
                log.info("restore suspended: %s", error)
                self._reopen()
                return
            for done in opened:
                self._tasks[done.task.lead] = done.task
            fresh = [done.task for done in opened if done.is_fresh]
            starts = PreparedBatch(CommitKind.START, [(t, _start_update(t)) for t in fresh])
            if fresh and not self._commit_or_reconcile(starts):
                # Without its START record a task is still fresh (see invariant: fresh only when nothing exists):
                # those that this instance still owns are opened again.
                close_tasks([self._tasks.pop(task.lead) for task in fresh])
                return
        self.active_stores.replace(self._tasks.values())
        if self._tasks:
            self._start_source()
        self._report_rebalance()
        self.states.to(InstanceState.RUNNING)

    def _report_rebalance(self) -> None:
        with self.lock:
            generation = self.member.metadata().generation
        self.listeners.rebalanced(self._tasks, generation)

    def _require_same_description(self) -> None:
        """Raise `OutcomeUnknown` if the state was changed after this instance had read its description. Blocks.

        A command that changes it, perhaps on another machine, sends the new description before it looks for members of the
        group for the last time (see invariant: ownership at commit). So an instance that has joined since then finds it.
        """
        self.description.look()
        if self.description.outdated is not None:
            raise OutcomeUnknown(
                f"the application was changed meanwhile ({self.description.outdated}): the instance starts again"
            )

    def _assignment(self, partition: TopicPartition, epoch: int) -> Assignment:
        subtopology = next(s for s in self.plan.subtopologies if s.lead.topic == partition.topic)
        if partition.partition >= self.partitions[partition.topic]:
            raise grown(self.plan, partition.topic, self.partitions[partition.topic])
        return Assignment(TaskId(subtopology.index, partition.partition), partition, epoch)

    def _still_ours(self, assignment: Assignment) -> bool:
        return self.member.ownership.epoch(assignment.partition) == assignment.epoch

    def _start_source(self) -> None:
        self.attached.source.start(self._next_offsets(), self.size)

    def _next_offsets(self) -> dict[TopicPartition, int]:
        return {p: offset for task in self._tasks.values() for p, offset in task.sources.items()}

    def _next_batch(self) -> SourceBatch | None:
        try:
            return self.attached.source.next(_WAIT_S)
        except SparkEnded:
            # A stop may end the JVM, too.
            if self._stop.is_set():
                raise
            if self.size.is_least:
                self._log_failed_batch()
            self._reduce(_JVM_ENDED_LOAD)
            raise
        except BatchTooLarge as error:
            if self.size.is_least:
                self._log_failed_batch()
                raise
            self._shrink(f"was too large: {error}")
            return None

    def _log_failed_batch(self) -> None:
        """Log where the batch begins that Spark could not compute, although no smaller one can be tried."""
        log.exception(
            "Spark failed to compute a batch although it has at most %d records. One record may take more memory than Spark "
            "has: look among those from %s on",
            self.size.records,
            ", ".join(f"{place} offset {at}" for place, at in sorted(self._next_offsets().items())),
        )

    def _process(self, batch: SourceBatch) -> None:
        """Prepare, commit and apply one batch; discard it if its start offsets are not those of its tasks."""
        subtopology = self.plan.subtopologies[batch.subtopology]
        lead = subtopology.lead.topic
        tasks = [self._tasks.get(TopicPartition(lead, number)) for number in sorted({p.partition for p in batch.ends})]
        found = {p: offset for task in tasks if task is not None for p, offset in task.sources.items()}
        if any(found.get(partition) != start for partition, start in batch.starts.items()):
            log.warning("batch discarded: its start offsets are not those of the tasks")
            self._reopen()
            return
        inputs = [(task, _input_of(task, batch)) for task in tasks if task is not None]
        moved = [(task, given) for task, given in inputs if given.ends != task.next_offsets]
        now_ms = self.clock()
        prepared = [(task, task.prepare(given, now_ms)) for task, given in moved]
        largest = max((update.records for _, update in prepared), default=0)
        held = sum(end - batch.starts[p] for p, end in batch.ends.items())
        if largest > self.capacity.records and self.size.can_shrink(held):
            load = largest / max(1, self.capacity.records)
            self._shrink(f"of {largest} records would not commit within transaction_timeout_ms", load)
            return
        self.source_watch.require_unchanged()
        for part in split_by_capacity(prepared, self.capacity.records):
            if not self._commit_or_reconcile(PreparedBatch(CommitKind.BATCH, part, batch.read)):
                return
        cached_bytes = sum(update.cached_bytes for _, update in prepared)
        computed_bytes = sum(table.nbytes for table in batch.pipelines)
        cached, computed = (
            cached_bytes / self.settings.cache_max_bytes,
            computed_bytes / self.settings.max_batch_bytes,
        )
        if max(cached, computed) > 1 and not self.size.is_least:
            self._shrink(
                f"updated {cached_bytes} bytes, cache_max_bytes is {self.settings.cache_max_bytes}"
                if cached > computed
                else f"had {computed_bytes} bytes, max_batch_bytes is {self.settings.max_batch_bytes}",
                max(cached, computed),
            )
        elif self.size.grow(held, max(cached, computed, largest / max(1, self.capacity.records))):
            log.info("batches are now %d source records", self.size.records)

    def _tick(self) -> None:
        """Let every task act whose wall-clock callbacks are due, without input (see invariant: ticks).

        A task without input commits its offsets again, because brokers delete offsets of topics that the group does not
        subscribe, and it subscribes only lead topics. They delete all while the group is empty.
        """
        now_ms = self.clock()
        changed: list[tuple[Task, TaskUpdate]] = []
        for task in self._tasks.values():
            is_expiring = abs(now_ms - task.offsets_ms) >= _COMMIT_AGAIN_MS
            if not is_expiring and not task.is_due(now_ms):
                continue
            update = task.prepare(TaskInput(task.next_offsets, (), ()), now_ms)
            if update.changes_something or is_expiring:
                changed.append((task, update))
            else:
                task.pass_clock(update)
        for part in split_by_capacity(changed, self.capacity.records):
            if not self._commit_or_reconcile(PreparedBatch(CommitKind.TICK, part)):
                return

    def _shrink(self, why: str, load: float = 2.0) -> None:
        """Continue with batches of half the size, or of less if this one was `load` times too large."""
        self._reduce(load)
        log.warning("a batch %s; batches are now %d source records", why, self.size.records)
        self.attached.source.stop()
        self._start_source()

    def _reduce(self, load: float) -> None:
        """Reduce the size of batches, also for the next launch."""
        self.size.shrink(load)
        self.run_file.update({"batch_records": self.size.records}, now=True)

    def _commit_or_reconcile(self, batch: PreparedBatch) -> bool:
        """Commit and return True; if a task was revoked meanwhile, discard the batch, reopen the tasks and return False."""
        try:
            self._commit(batch)
        except TidemarkError as error:
            for listener in self.commit_listeners:
                listener.discarded(batch, error)
            if not isinstance(error, TasksRevoked):
                raise
            log.info("batch discarded: %s", error)
            self._reopen()
            return False
        return True

    def _reopen(self) -> None:
        self._seen_changes = _NONE_SEEN
        self.changed.set()

    def _commit(self, batch: PreparedBatch) -> None:
        """Commit; after an abort, try the same batch again while the instance still owns the tasks.

        A wait for brokers does not count as a try.
        """
        attempt = 0
        while True:
            attempt += 1
            began_s = time.monotonic()
            try:
                self.committer.commit(batch.kind, batch.updates)
                if self.committer.description is not None:
                    self.committer = replace(self.committer, description=None)
                break
            except TasksRevoked:
                raise
            except BatchAborted as aborted:
                took = Period.since(began_s)
                for listener in self.commit_listeners:
                    listener.aborted(took, aborted)
                self.member.check()
                if self._await_brokers(aborted):
                    attempt = 0
                    continue
                if attempt == _COMMIT_TRIES:
                    raise
                log.warning("commit aborted, attempt %d of %d: %s", attempt, _COMMIT_TRIES, aborted)
                self.changed.wait(_WAIT_S)
        took, part = Period.since(began_s), batch.updates
        records = sum(update.records for _, update in part)
        self.capacity.observe(records, took.seconds)
        for listener in self.commit_listeners:
            listener.committed(batch, took)
        self._rate.add(batch.source_records)
        log.info(
            "commit: kind=%s tasks=%s batch=%s rows=%d late=%d bad=%d writes=%d records=%d seconds=%.3f",
            batch.kind, ",".join(str(t.id) for t, _ in part), ",".join(str(u.batch) for _, u in part),
            batch.source_records, sum(u.late_rows for _, u in part), sum(u.bad_rows for _, u in part),
            sum(u.writes for _, u in part), records, took.seconds,
        )  # fmt: skip
        self.run_file.update(
            {
                "batch": max(u.batch for _, u in part),
                "last_commit_ms": self.clock(),
                "stream_time_ms": max(u.stream_times.task_ms for _, u in part),
                "last_commit_seconds": round(took.seconds, 3),
                "batch_records": self.size.records,
            }
        )

    def _await_brokers(self, aborted: BatchAborted) -> bool:
        """Wait while some brokers answer but a commit cannot be written, and return whether that was so. Blocks.

        The member stays in the group, so no task moves. If no broker answers, the number of tries stays limited, because the
        group is then lost as well. Raises `TasksRevoked` on a rebalance or a stop, which come first.
        """
        app = self.plan.application_id
        topics = needed_by_commits(self.plan)
        outage = find_outage(self.settings, app, self.number, topics)
        if outage is None or not outage.is_partial:
            return False
        started = time.monotonic()
        path, why = outage_path(self.settings.var_dir, app, self.number), ""
        try:
            while outage is not None and outage.is_partial:
                if outage.why != why:
                    why = outage.why
                    self.listeners.on_waiting(Waiting(why))
                    with suppress(OSError):
                        write_outage(path, RecordedOutage(self.clock(), why, needed_topics(self.plan)))
                self._stop.wait(_LOOK_S)
                if self._stop.is_set() or self.changed.is_set():
                    raise TasksRevoked(f"the wait for brokers was interrupted: {why}") from aborted
                self.member.check()
                outage = find_outage(self.settings, app, self.number, topics)
        finally:
            path.unlink(missing_ok=True)
            if why:
                self.listeners.on_waiting(Waiting(why, time.monotonic() - started))
        return True

    def close(self, failure: BaseException | None) -> None:
        """Stop reading, close stores and member. Never raises, so that `failure` is not hidden."""
        for what, closing in (
            ("source", self.attached.source.stop),
            ("queries", self.queries.close),
            ("savepoint", self.savepoints.close),
            ("tasks", self._close_tasks),
            ("member", self.member.close),
            ("folder", self.directory.close),
        ):
            try:
                closing()
            except Exception as error:  # noqa: BLE001 - the other parts are closed all the same.
                log.warning("failed to close the %s: %s", what, error)
        if failure is not None:
            self.listeners.on_failure(failure)
        if failure is None and self.states.state is InstanceState.PENDING_SHUTDOWN:
            self.states.to(InstanceState.NOT_RUNNING)
        elif self.states.state is not InstanceState.ERROR:
            self.states.to(InstanceState.ERROR)
        self.listeners.close(_LISTENERS_CLOSE_S)

    def _close_tasks(self) -> None:
        self.active_stores.replace([])
        close_tasks(self._tasks.values())
        self._tasks.clear()


def _input_of(task: Task, batch: SourceBatch) -> TaskInput:
    partition = task.id.partition
    return TaskInput(
        ends={topic: batch.ends[TopicPartition(topic, partition)] for topic in task.next_offsets},
        pipelines=[rows_of_partition(table, partition) for table in batch.pipelines],
        dead_letters=tuple(letter for letter in batch.dead_letters if letter.partition == partition),
    )


def _start_update(task: Task) -> TaskUpdate:
    """Return the first update of a fresh task: its resolved start offsets, and nothing else.

    See invariant: fresh only when nothing exists.
    """
    return TaskUpdate(
        task=task.id,
        batch=task.batch + 1,
        sources={topic: (offset, offset) for topic, offset in task.next_offsets.items()},
        stream_times=task.stream_times,
        rows=0,
        late_rows=0,
        bad_rows=0,
        filtered_rows=0,
        stores=(),
        outputs=(),
        dead_letters=(),
        wall_ms=task.wall_ms,
    )
