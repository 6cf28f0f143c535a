"""One instance of an application: its lock, its member, its producer, its tasks, and the loop over batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.clock import wall_clock_ms
from tidemark.commit.commit import Committer, TasksRevoked
from tidemark.commit.producer import BatchProducer, IdempotentProducer, TransactionalProducer
from tidemark.commit.record import CommitKind
from tidemark.errors import (
    BatchAborted,
    BatchTooLarge,
    InstanceFenced,
    OutcomeUnknown,
    ProducerFenced,
    StartRefused,
    TaskLocked,
)
from tidemark.events.event import Waiting
from tidemark.failpoint import Probe
from tidemark.instance.listeners import instance_listeners
from tidemark.instance.resolve_plan import ResolvedPlan, await_session_end
from tidemark.instance.source import BatchSource, SourceBatch
from tidemark.instance.transaction_capacity import BatchSize, TransactionCapacity, split_by_capacity
from tidemark.kafka.availability import external_topics, find_outage
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.committed_reader import ChangelogBatch, stalled_after
from tidemark.kafka.member import Member
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.kafka.purge import RepartitionPurge
from tidemark.kafka.record_sizes import size_limits
from tidemark.kafka.record_timestamps import sink_timestamp_bounds
from tidemark.kafka.second_copy import Holder, SecondCopyCheck
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import format_partitions, task_ids
from tidemark.names import TaskId, TopicPartition, group_instance_id, transactional_id
from tidemark.recovery.facts import Witnesses
from tidemark.registry.topic_identities import Identities
from tidemark.restore.restorer import Restorer, RestoreSuspended
from tidemark.restore.store_builder import StoreBuilder, StoreOpener
from tidemark.restore.table_reader import NoTableReader
from tidemark.restore.task_opener import Assignment, TaskOpener
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.final import LastSavepoint
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.snapshot import LINKS_FOLDER, SavepointTaker
from tidemark.settings import Settings
from tidemark.standby.copies import StandbyCopies
from tidemark.stores.directory import InstanceDirectory
from tidemark.supervision.final_savepoint_request import leaving_path
from tidemark.supervision.hold import require_not_held
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage
from tidemark.supervision.run_file import RunFile, read_run_file, run_file_path
from tidemark.supervision.state import InstanceState, StateMachine
from tidemark.tasks.partials import rows_of_partition
from tidemark.tasks.task import Task, TaskInput
from tidemark.tasks.update import TaskUpdate
from tidemark.topology.plan import Guarantee, StoreSpec, TopologyPlan

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_LOOK_S = 1.0
_COMMIT_TRIES = 5
_LISTENERS_CLOSE_S = 5.0
_QUEUED_RECORDS_PER_BATCH_RECORD = 3


class Instance:
    """Runs until it is stopped or an error ends it; `close` releases everything."""

    def __init__(
        self,
        plan: TopologyPlan,
        settings: Settings,
        instance: int,
        topology_name: str,
        probe: Probe,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Take the process lock and check broker and topics; does not join the group yet.

        Raises `TaskLocked` if a live process holds the folder, `ApplicationHeld` while a command changes the stopped
        application, `PreflightFailed` with what is missing.
        """
        self._settings = settings
        self._number = instance
        self._source: BatchSource = _NoSource()
        self._clock = clock
        self._probe = probe
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._seen_changes = -1
        self._tasks: dict[TopicPartition, Task] = {}
        self._capacity = TransactionCapacity(settings.transaction_timeout_ms)
        self._rate = _Rate()
        self._stop = threading.Event()

        app = plan.application_id
        require_not_held(settings.var_dir, app)
        client = librdkafka_config(settings)
        self._admin = AdminClient(client)
        settled = ResolvedPlan.of(plan, settings, self._admin)
        plan = settled.plan
        partitions = preflight(plan, settings, self._admin, settled.committed)
        ids = settled.topic_ids(settings, self._admin)
        self._plan, self._partitions = plan, partitions
        limits = size_limits(plan, settings, self._admin)
        self._has_grown = settled.has_grown(partitions)
        self._directory = _lock_folder(settings, app, instance)
        path = run_file_path(settings.var_dir, app, instance)
        known = (read_run_file(path) or {}).get("batch_records")
        self._size = BatchSize(settings.max_batch_records, known)
        self._run_file = RunFile(
            path,
            {
                "application_id": app,
                "topology": topology_name,
                "topology_version": plan.version,
                "instance": instance,
                "acks": plan.acks.value,
                "batch_records": self._size.records,
            },
        )
        self._listeners = instance_listeners(plan, settings, instance, client, self._run_file, clock)
        self.states = StateMachine(app, instance, self._listeners.on_change)
        self._listeners.on_change(self.states.state, self.states.state)
        self._heartbeat_ms = max(200, settings.session_timeout_ms // 5)
        member_config = {
            **client,
            "group.id": app,
            "group.instance.id": group_instance_id(app, instance),
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": self._heartbeat_ms,
        }
        lead_topics = [subtopology.lead.topic for subtopology in plan.subtopologies]
        self._member = Member(member_config, lead_topics, self._lock, self._changed.set)
        self._second_copy = SecondCopyCheck(settings, self._admin, app, instance)
        self._producer = self._make_producer({**client, **limits.producer_config()}, transactional_id(app, instance))
        ends = EndOffsets(self._admin, settings.broker_timeout_ms / 1000)
        self._committer = Committer(
            application_id=app,
            topology_version=plan.version,
            instance=instance,
            producer=self._producer,
            member=self._member,
            ends=ends,
            sink_partitions=tuple(format_partitions(plan, partitions)),
            lock=self._lock,
            clock=clock,
            probe=probe,
            timestamp_bounds=sink_timestamp_bounds(plan, settings, self._admin),
            limits=limits,
            description=settled.description(partitions, ids),
        )
        identities = Identities(ids, lambda topics: topic_ids(self._admin, topics, settings))
        stores = StoreOpener(settings, Cache(settings.store_cache_bytes), clock)
        restorer = Restorer(client, stalled_after(settings), self._listeners, probe, self, clock)
        copies = SavepointCopies(SavepointRepository(settings.savepoint_location, app))
        self._savepoints = SavepointTaker(
            app, plan.version, instance, settings.var_dir, self._directory.folder, self._run_file, clock
        )
        self._last_savepoint = LastSavepoint(
            app,
            plan.version,
            task_ids(plan, partitions),
            leaving_path(settings.var_dir, app, instance),
            self._directory.folder / LINKS_FOLDER,
            settings.last_savepoint_timeout_ms / 1000,
            clock,
        )
        self._opener = TaskOpener(
            plan=plan,
            settings=settings,
            directory=self._directory,
            member=self._member,
            witnesses=Witnesses(plan, settings, client, ends, changelog_policies(plan), clock, identities),
            opener=stores,
            builder=StoreBuilder(stores, restorer, [StandbyCopies(settings.state_dir, app), copies]),
            sink_partitions=partitions,
            limits=limits,
        )
        self._purge = RepartitionPurge(plan, self._admin, settings.repartition_purge_interval_ms, clock)

    @property
    def plan(self) -> TopologyPlan:
        """Return the plan that runs: the topology as the last upgrade or rescale has left it."""
        return self._plan

    def _make_producer(self, client: Mapping[str, Any], name: str) -> BatchProducer:
        timeout_ms = self._settings.transaction_timeout_ms
        queued = max(100_000, self._settings.max_batch_records * _QUEUED_RECORDS_PER_BATCH_RECORD)
        if self._plan.guarantee is Guarantee.AT_LEAST_ONCE:
            acks, outputs = self._plan.acks, self._plan.output_topics
            return IdempotentProducer(client, name, timeout_ms, queued, self._member.commit, acks, outputs)
        return TransactionalProducer(client, name, timeout_ms, queued)

    @property
    def folder(self) -> Path:
        """Return this instance's own folder, which its process lock protects."""
        return self._directory.folder

    def run(self, source: BatchSource, stop: threading.Event) -> None:
        """Process until `stop` is set. Blocks. Raises the `TidemarkError` whose `exit_code` tells the supervisor what to do."""
        self._source, self._stop = source, stop
        self._producer.init(stalled_after(self._settings))
        if self._has_grown:
            await_session_end(self._admin, self._plan.application_id, self._number, self._settings, stop)
        self._second_copy.note_earlier()
        self._member.start()
        self.states.to(InstanceState.REBALANCING)
        try:
            try:
                self._work(stop)
            except ProducerFenced:
                # Only the group knows whether another member has joined (see invariant: exit codes). It joins at once, and two
                # heartbeats follow.
                self._member.await_verdict(2 * self._heartbeat_ms / 1000)
                raise
        except InstanceFenced as fenced:
            self._source.stop()
            log.warning("fenced: asking the group whether another copy of this instance lives: %s", fenced)
            holder = self._second_copy.holder(stop)
            if holder is Holder.COPY:
                raise
            raise OutcomeUnknown(
                f"the group has replaced the member of this instance by another one, and {holder.value}; the instance starts "
                f"again ({fenced})"
            ) from fenced

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._member.check()
            if self._changed.is_set():
                self._changed.clear()
                self._reconcile(stop)
                continue
            batch = self._next_batch() if self._tasks else None
            if batch is not None:
                self._process(batch)
            elif not self._tasks:
                self._changed.wait(_WAIT_S)
            # Also while batches wait: under a backlog there is always one, and tasks without input must tick as well.
            self._tick()
            self._savepoints.run(self._tasks.values())
            self._purge.run({p: offset for task in self._tasks.values() for p, offset in task.sources.items()})
            self._run_file.update({"records_per_second": self._rate.per_second(self._clock())})
        self.states.to(InstanceState.PENDING_SHUTDOWN)
        self._savepoints.close()
        with self._lock:
            held = self._member.ownership.held()
        self._last_savepoint.take([task for p, task in self._tasks.items() if held.get(p) == task.epoch])

    def read_table(
        self, spec: StoreSpec, partition: TopicPartition, start: int, end: int, should_continue: Callable[[], bool]
    ) -> Iterator[ChangelogBatch]:
        """Implement `TableReader` for the instance's own restores, with the source that it reads from."""
        return self._source.read_table(spec, partition, start, end, should_continue)

    def _reconcile(self, stop: threading.Event) -> None:
        """Open and close tasks to match the group's assignment, then read again from explicit offsets."""
        with self._lock:
            changes = self._member.ownership.changes
            held = self._member.ownership.held()
        kept = {p for p, task in self._tasks.items() if held.get(p) == task.epoch}
        missing = [self._assignment(p, epoch) for p, epoch in sorted(held.items()) if p not in kept]
        if changes == self._seen_changes:
            return
        self._seen_changes = changes
        self.states.to(InstanceState.REBALANCING)
        self._source.stop()
        for partition in [p for p in self._tasks if p not in kept]:
            self._tasks.pop(partition).close()
        self._probe("rebalance")
        if missing:
            self.states.to(InstanceState.RESTORING)
            try:
                opened = self._opener.open(missing, lambda a: not stop.is_set() and self._still_ours(a))
            except RestoreSuspended as error:
                log.info("restore suspended: %s", error)
                self._reopen()
                return
            for done in opened:
                self._tasks[done.task.lead] = done.task
            fresh = [done.task for done in opened if done.is_fresh]
            if fresh and not self._commit_or_reconcile(CommitKind.START, [(t, _start_update(t)) for t in fresh]):
                # Without its START record a task is still fresh (see invariant: fresh only when nothing exists):
                # those that this instance still owns are opened again.
                for task in fresh:
                    self._tasks.pop(task.lead).close()
                return
        if self._tasks:
            self._start_source()
        with self._lock:
            generation = self._member.metadata().generation
        self._listeners.rebalanced(self._tasks, generation)
        self.states.to(InstanceState.RUNNING)

    def _assignment(self, partition: TopicPartition, epoch: int) -> Assignment:
        subtopology = next(s for s in self._plan.subtopologies if s.lead.topic == partition.topic)
        if partition.partition >= self._partitions[partition.topic]:
            if partition.topic in self._plan.routed:
                raise OutcomeUnknown(f"{partition.topic} has more partitions now: the instance starts again with them")
            raise StartRefused(
                f"{partition.topic} now has more than its {self._partitions[partition.topic]} partitions: records of "
                "one key are in two of them; stop the application and use `tidemark rescale run`"
            )
        return Assignment(TaskId(subtopology.index, partition.partition), partition, epoch)

    def _still_ours(self, assignment: Assignment) -> bool:
        return self._member.ownership.epoch(assignment.partition) == assignment.epoch

    def _start_source(self) -> None:
        self._source.start(
            {p: offset for task in self._tasks.values() for p, offset in task.sources.items()}, self._size
        )

    def _next_batch(self) -> SourceBatch | None:
        try:
            return self._source.next(_WAIT_S)
        except BatchTooLarge as error:
            if self._size.is_least:
                raise
            self._shrink(f"was too large: {error}")
            return None

    def _process(self, batch: SourceBatch) -> None:
        """Prepare, commit and apply one batch; discard it if its start offsets are not those of its tasks."""
        subtopology = self._plan.subtopologies[batch.subtopology]
        lead = subtopology.lead.topic
        tasks = [self._tasks.get(TopicPartition(lead, number)) for number in sorted({p.partition for p in batch.ends})]
        found = {p: offset for task in tasks if task is not None for p, offset in task.sources.items()}
        if any(found.get(partition) != start for partition, start in batch.starts.items()):
            log.warning("batch thrown away: its start offsets are not those of the tasks")
            self._reopen()
            return
        inputs = [(task, _input_of(task, batch)) for task in tasks if task is not None]
        moved = [(task, given) for task, given in inputs if given.ends != task.next_offsets]
        now_ms = self._clock()
        prepared = [(task, task.prepare(given, now_ms)) for task, given in moved]
        largest = max((update.records for _, update in prepared), default=0)
        if largest > self._capacity.records and not self._size.is_least:
            load = largest / max(1, self._capacity.records)
            self._shrink(f"of {largest} records would not commit within transaction_timeout_ms", load)
            return
        for part in split_by_capacity(prepared, self._capacity.records):
            if not self._commit_or_reconcile(CommitKind.BATCH, part):
                return
        cached_bytes = sum(update.cached_bytes for _, update in prepared)
        computed_bytes = sum(table.nbytes for table in batch.pipelines)
        cached, computed = (
            cached_bytes / self._settings.cache_max_bytes,
            computed_bytes / self._settings.max_batch_bytes,
        )
        held = sum(end - batch.starts[p] for p, end in batch.ends.items())
        if max(cached, computed) > 1 and not self._size.is_least:
            self._shrink(
                f"updated {cached_bytes} bytes, cache_max_bytes is {self._settings.cache_max_bytes}"
                if cached > computed
                else f"had {computed_bytes} bytes, max_batch_bytes is {self._settings.max_batch_bytes}",
                max(cached, computed),
            )
        elif self._size.grow(held, max(cached, computed, largest / max(1, self._capacity.records))):
            log.info("batches are now %d source records", self._size.records)

    def _tick(self) -> None:
        """Let every task act whose wall-clock callbacks are due, without input (see invariant: ticks)."""
        now_ms = self._clock()
        changed: list[tuple[Task, TaskUpdate]] = []
        for task in self._tasks.values():
            if not task.is_due(now_ms):
                continue
            update = task.prepare(TaskInput(task.next_offsets, (), ()), now_ms)
            if update.changes_something:
                changed.append((task, update))
            else:
                task.pass_clock(update)
        for part in split_by_capacity(changed, self._capacity.records):
            if not self._commit_or_reconcile(CommitKind.TICK, part):
                return

    def _shrink(self, why: str, load: float = 2.0) -> None:
        """Continue with batches of half the size, or of less if this one was `load` times too large."""
        self._size.shrink(load)
        self._run_file.update({"batch_records": self._size.records}, now=True)
        log.warning("a batch %s; batches are now %d source records", why, self._size.records)
        self._source.stop()
        self._start_source()

    def _commit_or_reconcile(self, kind: CommitKind, part: list[tuple[Task, TaskUpdate]]) -> bool:
        """Commit and return True; if a task was revoked meanwhile, discard the batch, reopen the tasks and return False."""
        try:
            self._commit(kind, part)
        except TasksRevoked as revoked:
            log.info("batch thrown away: %s", revoked)
            self._reopen()
            return False
        return True

    def _reopen(self) -> None:
        self._seen_changes = -1
        self._changed.set()

    def _commit(self, kind: CommitKind, part: list[tuple[Task, TaskUpdate]]) -> None:
        """Commit; after an abort, try the same batch again while the instance still owns the tasks.

        A wait for brokers does not count as a try.
        """
        attempt = 0
        while True:
            attempt += 1
            started = time.monotonic()
            try:
                self._committer.commit(kind, part)
                if self._committer.description is not None:
                    self._committer = replace(self._committer, description=None)
                break
            except TasksRevoked:
                raise
            except BatchAborted as aborted:
                self._member.check()
                if self._await_brokers(aborted):
                    attempt = 0
                    continue
                if attempt == _COMMIT_TRIES:
                    raise
                log.warning("commit aborted, attempt %d of %d: %s", attempt, _COMMIT_TRIES, aborted)
                self._changed.wait(_WAIT_S)
        elapsed_s = time.monotonic() - started
        records = sum(update.records for _, update in part)
        self._capacity.observe(records, elapsed_s)
        rows = sum(u.rows + u.filtered_rows + u.bad_rows for _, u in part)
        self._rate.add(self._clock(), rows)
        log.info(
            "commit: kind=%s tasks=%s batch=%s rows=%d late=%d bad=%d writes=%d records=%d seconds=%.3f",
            kind, ",".join(str(t.id) for t, _ in part), ",".join(str(u.batch) for _, u in part), rows,
            sum(u.late_rows for _, u in part), sum(u.bad_rows for _, u in part),
            sum(u.writes for _, u in part), records, elapsed_s,
        )  # fmt: skip
        self._run_file.update(
            {
                "batch": max(u.batch for _, u in part),
                "last_commit_ms": self._clock(),
                "stream_time_ms": max(u.stream_times.task_ms for _, u in part),
                "last_commit_seconds": round(elapsed_s, 3),
                "batch_records": self._size.records,
            }
        )

    def _await_brokers(self, aborted: BatchAborted) -> bool:
        """Wait while some brokers answer but a commit cannot be written, and return whether that was so. Blocks.

        The member stays in the group, so no task moves. If no broker answers, the number of tries stays limited, because the
        group is then lost as well. Raises `TasksRevoked` on a rebalance or a stop, which come first.
        """
        app = self._plan.application_id
        topics = {topic for s in self._plan.subtopologies for topic in s.sink_topics}
        outage = find_outage(self._settings, app, topics)
        if outage is None or not outage.is_partial:
            return False
        started = time.monotonic()
        path, why = outage_path(self._settings.var_dir, app, self._number), ""
        try:
            while outage is not None and outage.is_partial:
                if outage.why != why:
                    why = outage.why
                    self._listeners.on_waiting(Waiting(why))
                    with suppress(OSError):
                        write_outage(path, RecordedOutage(self._clock(), why, external_topics(self._plan)))
                self._stop.wait(_LOOK_S)
                if self._stop.is_set() or self._changed.is_set():
                    raise TasksRevoked(f"the wait for brokers was interrupted: {why}") from aborted
                self._member.check()
                outage = find_outage(self._settings, app, topics)
        finally:
            path.unlink(missing_ok=True)
            if why:
                self._listeners.on_waiting(Waiting(why, time.monotonic() - started))
        return True

    def close(self, failure: BaseException | None) -> None:
        """Stop reading, close stores and member. Never raises, so that `failure` is not hidden."""
        for what, closing in (
            ("source", self._source.stop),
            ("savepoint", self._savepoints.close),
            ("tasks", self._close_tasks),
            ("member", self._member.close),
            ("folder", self._directory.close),
        ):
            try:
                closing()
            except Exception as error:  # noqa: BLE001 - the other parts are closed all the same.
                log.warning("failed to close the %s: %s", what, error)
        if failure is not None:
            self._listeners.on_failure(failure)
        if failure is None and self.states.state is InstanceState.PENDING_SHUTDOWN:
            self.states.to(InstanceState.NOT_RUNNING)
        elif self.states.state is not InstanceState.ERROR:
            self.states.to(InstanceState.ERROR)
        self._listeners.close(_LISTENERS_CLOSE_S)

    def _close_tasks(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()


class _NoSource(NoTableReader):
    """The source of an instance that does not run yet."""

    def start(self, next_offsets: Mapping[TopicPartition, int], size: BatchSize) -> None:
        raise RuntimeError("an instance reads only while it runs")

    def next(self, timeout_s: float) -> SourceBatch | None:
        return None

    def stop(self) -> None:
        return


def _lock_folder(settings: Settings, application_id: str, instance: int) -> InstanceDirectory:
    """Take the process lock. A command that holds the application takes its hold before the folders, so one sees the other.

    Raises `TaskLocked`, `ApplicationHeld`.
    """
    with ExitStack() as locked:
        try:
            directory = InstanceDirectory(settings.state_dir, application_id, instance)
        except TaskLocked:
            require_not_held(settings.var_dir, application_id)
            raise
        locked.callback(directory.close)
        require_not_held(settings.var_dir, application_id)
        locked.pop_all()
    return directory


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


class _Rate:
    """Source records per second over the last ten seconds."""

    _SPAN_MS = 10_000

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []

    def add(self, now_ms: int, records: int) -> None:
        self._samples.append((now_ms, records))

    def per_second(self, now_ms: int) -> float:
        self._samples = [s for s in self._samples if s[0] > now_ms - self._SPAN_MS]
        return round(sum(records for _, records in self._samples) * 1000 / self._SPAN_MS, 1)
