"""Tidemark's side of a case: the production tasks, fed batch by batch, committed, restarted, and robbed of their state.

Only Spark and Kafka are not there: `batches` gives what Spark would, and topics are lists.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
from tests.system.fuzz.batches import KafkaRecord, pipeline_table
from tests.system.fuzz.case import APPLICATION_ID, After, Case, Record, Shape, ToNode, expressions, shapes, sink_name
from tests.system.fuzz.results import Line, Results

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitKind, CommitRecord, commit_record
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TaskId
from tidemark.restore.restorer import changelog_writes
from tidemark.restore.task_opener import job_to
from tidemark.stores.layout import ValueLayout, split_window_key
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.session_keys import split_session_key
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.tasks.fold import result_columns
from tidemark.tasks.operators import map as map_operator
from tidemark.tasks.task import Task, TaskInput, changelog_of
from tidemark.tasks.update import TaskUpdate
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreKind, StoreSpec, StreamStreamJoin, SubTopology

WALL_MS = 1_700_000_000_000
_COUNTER_BYTES = 4
_TIME_BYTES = 8


def run(case: Case) -> Results:
    """Take every record. Raises `TidemarkError`, and whatever a fault of Tidemark's raises."""
    with ExitStack() as opened:
        opened.enter_context(_one_database())
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-"))) if case.rocksdb else None
        application = _Application(case, folder)
        opened.callback(application.close)
        for batch in case.batches:
            application.take(batch)
        return application.results()


_DATABASE = duckdb.connect(":memory:", config={"threads": 1})


@contextmanager
def _one_database() -> Iterator[None]:
    """One for all nodes while a case runs: opening one takes 20 ms, and there is one for each batch of each node."""
    shared = SimpleNamespace(
        connect=lambda *_, **__: _DATABASE.cursor(), OutOfMemoryException=duckdb.OutOfMemoryException
    )
    map_operator.duckdb = shared  # type: ignore[assignment]
    try:
        yield
    finally:
        map_operator.duckdb = duckdb


class _Directory:
    """In place of a task's folder, of which nothing is needed here."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def close(self) -> None:
        """Nothing is locked."""


class _Application:
    """The tasks of partition 0, and the topics between them."""

    def __init__(self, case: Case, folder: Path | None) -> None:
        self._case = case
        self._folder = folder
        self._known = expressions(case)
        self._plan = case.plan
        self._topics: dict[str, list[KafkaRecord]] = {t: [] for s in self._plan.subtopologies for t in s.source_topics}
        self._changelogs: dict[str, list[tuple[bytes, bytes | None]]] = {}
        self._committed: dict[TaskId, tuple[bytes, str]] = {}
        self._sinks: dict[str, list[Any]] = {}
        self._late = 0
        self._tasks = [
            self._opened(s, {store.name: self._store(s, store) for store in s.stores}) for s in self._plan.subtopologies
        ]

    def _store(self, subtopology: SubTopology, spec: StoreSpec) -> Store:
        if self._folder is None:
            return MemoryStore()
        return RocksStore(self._folder / str(subtopology.index) / spec.name, write_buffer_bytes=1 << 20)

    def _opened(self, subtopology: SubTopology, stores: dict[str, Store]) -> Task:
        task = TaskId(subtopology.index, 0)
        next_offsets, stream_times, batch = dict.fromkeys(subtopology.source_topics, 0), StreamTimes.none(), 0
        if task in self._committed:
            record, metadata = self._decoded(task)
            next_offsets, stream_times, batch = record.end_offsets, metadata.stream_times, metadata.batch
        return Task(
            application_id=self._plan.application_id,
            topology_version=self._plan.version,
            task_id=task,
            epoch=1,
            subtopology=subtopology,
            stores=stores,
            directory=_Directory(self._folder),  # type: ignore[arg-type]
            next_offsets=next_offsets,
            stream_times=stream_times,
            batch=batch,
            sink_partitions=dict.fromkeys(subtopology.sink_topics, 1),
            wall_ms=WALL_MS,
        )

    def _decoded(self, task: TaskId) -> tuple[CommitRecord, OffsetMetadata]:
        value, text = self._committed[task]
        metadata = OffsetMetadata.decode(text)
        if metadata is None:
            raise AssertionError(f"offset metadata that cannot be read: {text}")
        return CommitRecord.from_bytes(value), metadata

    def take(self, batch: Sequence[Record]) -> None:
        """One batch of every sub-topology, until nothing waits in the topics between them."""
        for record in batch:
            value = None if record.row is None else json.dumps(record.row).encode()
            self._append(record.topic, None if record.key is None else record.key.encode(), value, record.timestamp)
        if self._case.commits_each:
            while (task := self._next_task()) is not None:
                self._batch(task, 1)
        else:
            while any(self._waiting(task) for task in self._tasks):
                for task in self._tasks:
                    if self._waiting(task):
                        self._batch(task, None)
        after = batch[-1].after
        if after in (After.RESTART, After.LOSE_STATE):
            self._tasks = [self._restarted(task, after) for task in self._tasks]

    def _append(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int) -> None:
        if topic in self._topics:
            records = self._topics[topic]
            records.append(KafkaRecord(topic, len(records), key, value, timestamp))

    def _waiting(self, task: Task) -> list[KafkaRecord]:
        return [r for topic, at in task.next_offsets.items() for r in self._topics[topic][at:]]

    def _next_task(self) -> Task | None:
        """The task with the oldest record at the head of a topic, as Kafka Streams' PartitionGroup chooses."""
        heads = [
            (self._topics[topic][at].timestamp, task.id.subtopology, task)
            for task in self._tasks
            for topic, at in task.next_offsets.items()
            if at < len(self._topics[topic])
        ]
        return min(heads, key=lambda head: head[:2])[2] if heads else None

    def _batch(self, task: Task, most: int | None) -> None:
        waiting = self._waiting(task)
        if most is not None:
            first = {r.topic: r for r in reversed(waiting)}
            waiting = [min(first.values(), key=lambda r: (r.timestamp, task.subtopology.source_topics.index(r.topic)))]
        ends = dict(task.next_offsets)
        for record in waiting:
            ends[record.topic] = record.offset + 1
        tables = [
            pipeline_table(task.subtopology, pipeline, waiting, self._known) for pipeline in task.subtopology.pipelines
        ]
        self._commit(task, task.prepare(TaskInput(ends, tables, ()), WALL_MS))

    def _commit(self, task: Task, update: TaskUpdate) -> None:
        self._late += update.late_rows
        for output in update.outputs:
            for message in output.messages:
                self._sinks.setdefault(output.topic, []).append(message)
                self._append(output.topic, message["key"], message["value"], message["timestamp"])
        for store in update.stores:
            if store.changelog is not None:
                log = self._changelogs.setdefault(store.changelog, [])
                for writes in store.writes:
                    log += zip(writes.keys, writes.values, strict=True)
        record = commit_record(
            CommitKind.BATCH,
            self._plan.application_id,
            self._plan.version,
            update.task,
            update.batch,
            WALL_MS,
            spans=update.sources,
            stream_times=update.stream_times,
            changelogs={},
            ends_before={},
            rows=update.rows,
            late_rows=update.late_rows,
            bad_rows=update.bad_rows,
            filtered_rows=update.filtered_rows,
        )
        metadata = OffsetMetadata(update.batch, update.stream_times, self._plan.version)
        self._committed[update.task] = (record.to_bytes(), metadata.encode())
        task.apply(update, {c.topic: len(self._changelogs.get(c.topic, ())) for c in task.changelogs}, WALL_MS)

    def _restarted(self, task: Task, after: After) -> Task:
        """A task made from what was committed, on the stores as they are, or on new ones that the changelogs fill."""
        subtopology = task.subtopology
        stores = dict(task.stores)
        if after is After.LOSE_STATE:
            for spec in subtopology.stores:
                stores[spec.name].close()
                if self._folder is not None:
                    shutil.rmtree(self._folder / str(subtopology.index) / spec.name)
                stores[spec.name] = self._store(subtopology, spec)
                if task.id in self._committed:
                    self._restore(subtopology, spec, stores[spec.name])
        elif self._folder is not None:
            for spec in subtopology.stores:
                stores[spec.name].close()
                stores[spec.name] = self._store(subtopology, spec)
        return self._opened(subtopology, stores)

    def _restore(self, subtopology: SubTopology, spec: StoreSpec, store: Store) -> None:
        """As `Restorer.replay_tail` does from the changelog's beginning."""
        record, metadata = self._decoded(TaskId(subtopology.index, 0))
        topic = changelog_of(self._plan.application_id, spec)
        log = self._changelogs.get(topic, [])
        target = StoreCheckpoint(
            application_id=self._plan.application_id,
            topology_version=self._plan.version,
            store=spec.name,
            value_layout=value_signature(spec, value_layouts(subtopology)[spec.name]),
            batch=metadata.batch,
            commit_time_ms=WALL_MS,
            source_offsets=record.end_offsets,
            stream_time_ms=metadata.stream_times.of(spec.name),
            changelog_offset=len(log),
        )
        job = job_to(self._plan, record.task, spec, 0, target)
        batch = ChangelogBatch([key for key, _ in log], [value for _, value in log], len(log))
        store.put_many(changelog_writes(job, batch) if log else [], target, None)
        store.put_many([], job.target, job.first_live_segment)

    def results(self) -> Results:
        """What came out, and what the stores hold."""
        known = shapes(self._case.nodes)
        sinks = {}
        for place, node in enumerate(self._case.nodes):
            if isinstance(node, ToNode):
                messages = self._sinks.get(sink_name(place), ())
                sinks[sink_name(place)] = [_line(message, known[node.input], node) for message in messages]
        stores: dict[str, list[Line]] = {}
        for task in self._tasks:
            stores |= contents(task)
        return Results(sinks, stores, self._late)

    def close(self) -> None:
        """Close the stores."""
        for task in self._tasks:
            for store in task.stores.values():
                store.close()


def _line(message: dict[str, Any], shape: Shape, node: ToNode) -> Line:
    key, value = message["key"], message["value"]
    row = None if value is None else json.loads(value)
    start = end = None
    if node.says_window and shape.window is not None:
        if shape.window.kind == "session":
            key, start, end = split_session_key(key)
        else:
            key, start = split_window_key(key)
            end = start + shape.window.size
    elif shape.kind == "windowed" and row:
        start, end = row["window_start"], row["window_end"]
    return Line(None if key is None else key.decode(), start, end, row, message["timestamp"])


def contents(task: Task) -> dict[str, list[Line]]:
    """What each store of a task holds, by name, as far as Kafka Streams has such a store."""
    layouts = value_layouts(task.subtopology)
    joins = {spec.name for node in task.subtopology.nodes if isinstance(node, StreamStreamJoin) for spec in node.stores}
    found: dict[str, list[Line]] = {}
    for spec in task.subtopology.stores:
        store = task.stores[spec.name]
        entries = [entry for segment in store.segments() for entry in store.items(segment)]
        aggregates = next((a.aggregates for a in task.subtopology.aggregations if a.store == spec), ())
        layout = layouts[spec.name]
        lines = []
        for name, value in entries:
            key, start, end = _place(spec, name, spec.name in joins)
            row, timestamp = _row(layout, aggregates, value)
            lines.append(Line(key, start, end, row, timestamp))
        found[spec.name] = lines
    return found


def _place(spec: StoreSpec, name: bytes, is_join: bool) -> tuple[str, int | None, int | None]:
    if is_join and spec.kind is StoreKind.WINDOW:
        key, timestamp = split_window_key(name)
        return key[: -_TIME_BYTES - _COUNTER_BYTES].decode(), timestamp, None
    if spec.kind is StoreKind.WINDOW:
        key, start = split_window_key(name)
        return key.decode(), start, None
    if spec.kind is StoreKind.SESSION:
        key, start, end = split_session_key(name)
        return key.decode(), start, end
    return name.decode(errors="replace"), None, None


def _row(layout: ValueLayout | None, aggregates: Any, value: bytes) -> tuple[dict[str, Any], int | None]:
    if layout is not None:
        records = layout.decode([value])
        timestamp = int(records["ts"][0]) if "ts" in (records.dtype.names or ()) else None
        return {name: column[0].as_py() for name, column in result_columns(layout, aggregates, records)}, timestamp
    row = json.loads(value) if value[:1] == b"{" else {"value": value.hex()}
    return row, row.pop("__ts", None)


__all__ = ["APPLICATION_ID", "contents", "run"]
