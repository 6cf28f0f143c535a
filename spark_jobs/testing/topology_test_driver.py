"""`TopologyTestDriver` runs a topology in one process, without broker or sockets, with the plan and tasks of production.

    driver = TopologyTestDriver(topology(), spark)
    driver.pipe("pulse-events", {"patient_id": "p1", "beat_ms": 1000, "ibi_ms": 800}, key="p1")
    driver.read("pulse-counts")

Piped records form one batch, which is committed when a topic or store is read, time advances, or `commit()` is called. Stream
time moves once per commit, as in production. Stores are in memory, except custom ones. Spark compiles a topology's SQL once,
so the first commit takes a second.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.bounded_read import bad_records
from spark_jobs.compile import dead_letter_places_sql
from spark_jobs.kafka_reading import KAFKA_RECORDS
from spark_jobs.prepared import SparkRows
from spark_jobs.refused_records import (
    Refusal,
    Refused,
    RefusedRecords,
    Span,
    offsets_of,
    with_refused,
)
from spark_jobs.statements import Statements
from spark_jobs.testing.stored_entries import roles_of, stored_key, stored_value, window_key
from tidemark.commit.dead_letter import dead_letter_record
from tidemark.errors import InvalidTopology
from tidemark.kafka.messages import Message
from tidemark.kafka.partitioner import partition_of
from tidemark.kafka.record_sizes import NO_LIMITS
from tidemark.names import TaskId, TopicPartition, dlq_topic
from tidemark.settings import Settings
from tidemark.stores.directory import InstanceDirectory, TaskDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store
from tidemark.stream_times import LATEST_TIMESTAMP_MS, StreamTimes
from tidemark.tasks.code import load_code
from tidemark.tasks.partials import Partial, rows_of_partition
from tidemark.tasks.task import Task, TaskInput, close_tasks
from tidemark.tasks.update import IMPOSSIBLE_TIMESTAMP, DeadLetter, Headers, TaskUpdate
from tidemark.tasks.values import value_layouts
from tidemark.topology.builder import Topology
from tidemark.topology.durations import Duration, duration_ms
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import StoreKind, StoreSpec, SubTopology, WindowedKey

_HEADER = ("key", "value")


# Windowed keys of topics have the form of the keys in these stores.
_WINDOWED_KEYS = {WindowedKey.TIME: StoreKind.WINDOW, WindowedKey.SESSION: StoreKind.SESSION}


@dataclass(frozen=True)
class TestRecord:
    """A record of a topic. `value` is its JSON value, or None for a tombstone; of a dead letter, the bytes that were read.

    A dead letter's reason, origin and details are in its headers, as `tidemark.commit.dead_letter` writes them. `key` is the
    key's text, also in a topic whose keys are numbers or bytes; None for a record without a key; and bytes if it is not a text
    (in a dead letter). In a topic with windowed keys, it is (key, window start) or (key, session start, session end).
    `partition` is the one that production would choose in a topic with as many partitions as the driver has; 0 for a record
    without a key, if no partitioner chooses.
    """

    __test__ = False

    key: Any
    value: Any
    timestamp_ms: int
    headers: Headers = ()
    partition: int = 0


@dataclass(frozen=True)
class _Piped:
    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers


_Place = tuple[TopicPartition, int]
"""A partition and an offset."""


class TopologyTestDriver:
    """Runs a topology on `partitions` tasks per sub-topology. Close it, or use it as a context manager."""

    def __init__(
        self, topology: Topology, spark: SparkSession, *, partitions: int = 1, start_ms: int = 1_700_000_000_000
    ) -> None:
        """`start_ms` is the clock at the start in epoch milliseconds. Only `advance_wall_clock` moves it."""
        self._plan = topology.plan()
        self._spark = spark
        self._partitions = partitions
        self._now_ms = start_ms
        settings = Settings.load()
        self._ahead_ms = settings.max_timestamp_ahead_ms
        self._statements = {
            s.index: Statements(s, f"test_driver_records_{s.index}", self._ahead_ms) for s in self._plan.subtopologies
        }
        self._sql_memory_bytes = settings.sql_memory_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="tidemark-test-driver-")
        self._directory = InstanceDirectory(Path(self._folder.name), self._plan.application_id, 0)
        self._topics: dict[str, list[TestRecord]] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._waiting: dict[str, list[_Piped]] = {t: [] for s in self._plan.subtopologies for t in s.source_topics}
        self._stores: dict[TaskId, dict[str, Store]] = {}
        self._windowed_keys = {
            sink.topic: _WINDOWED_KEYS[sink.windowed_key]
            for s in self._plan.subtopologies
            for sink in s.sinks
            if sink.windowed_key is not None
        }
        self._key_serdes = {sink.topic: sink.key_serde for s in self._plan.subtopologies for sink in s.sinks}
        self._key_serdes |= {source.topic: source.key_serde for s in self._plan.subtopologies for source in s.sources}
        self._tasks = {task.id: task for task in self._open()}
        self.late_records = 0

    def _open(self) -> Iterator[Task]:
        counts = {topic: self._partitions for s in self._plan.subtopologies for topic in s.sink_topics}
        for subtopology in self._plan.subtopologies:
            for partition in range(self._partitions):
                task = TaskId(subtopology.index, partition)
                directory = self._directory.open_task(task)
                self._stores[task] = {store.name: _store(store, directory) for store in subtopology.stores}
                yield Task(
                    application_id=self._plan.application_id,
                    topology_version=self._plan.version,
                    task_id=task,
                    epoch=1,
                    subtopology=subtopology,
                    stores=self._stores[task],
                    directory=directory,
                    next_offsets=dict.fromkeys(subtopology.source_topics, 0),
                    stream_times=StreamTimes.none(),
                    batch=0,
                    sink_partitions=counts,
                    wall_ms=self._now_ms,
                    sql_memory_bytes=self._sql_memory_bytes,
                )

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the tasks and remove their folder."""
        close_tasks(self._tasks.values())
        self._directory.close()
        self._folder.cleanup()

    def pipe(
        self,
        topic: str,
        value: Mapping[str, Any] | bytes | None,
        *,
        key: str | bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """Write a record to a source topic. The value is a dictionary, bytes, or None for a tombstone.

        A key that is a text is written in the form of the source's `key_serde`; bytes are written as they are. `timestamp_ms`
        is the record's Kafka timestamp; the default is the clock. Raises `InvalidTopology` if the topology does not read the
        topic, and `ValueError` for a text that has no such form.
        """
        if topic not in self._waiting or topic in self._plan.repartition_topics:
            known = sorted(set(self._waiting) - set(self._plan.repartition_topics))
            raise InvalidTopology(f"the topology does not read topic '{topic}'; it reads {', '.join(known)}")
        data = value if value is None or isinstance(value, bytes) else json.dumps(dict(value)).encode()
        at = self._now_ms if timestamp_ms is None else timestamp_ms
        given = self._key_serdes[topic].encode(key) if isinstance(key, str) else key
        self._append(topic, given, data, at, tuple(headers), self._partition_of(given))

    def _partition_of(self, key: bytes | None) -> int:
        return 0 if key is None else partition_of(key, self._partitions)

    def _append(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, partition: int
    ) -> None:
        place = TopicPartition(topic, partition)
        offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + 1
        self._waiting[topic].append(_Piped(key, value, partition, offset, timestamp_ms, headers))

    def advance_wall_clock(self, by: Duration) -> None:
        """Commit the piped records, move the clock, and let every node act that depends on it."""
        self.commit()
        self._now_ms += duration_ms(by, "advance_wall_clock")
        for task in self._tasks.values():
            self._take(task, task.prepare(TaskInput(task.next_offsets, (), ()), self._now_ms))
        self.commit()

    def advance_stream_time(self, to_ms: int) -> None:
        """Commit the piped records, then a batch that moves stream time to `to_ms`, as a record of that time would.

        Only a record that reaches a left or outer join of streams makes it emit rows that found no partner: pipe one.
        What a sub-topology writes then to the next one is committed before the time of that one moves.
        """
        self.commit()
        for subtopology in self._plan.subtopologies:
            for partition in range(self._partitions):
                task = self._tasks[TaskId(subtopology.index, partition)]
                self._take(task, task.prepare(TaskInput(task.next_offsets, (), ()), self._now_ms, to_ms))
            self.commit()

    def commit(self) -> None:
        """Commit a batch of every sub-topology, repeatedly until no record waits in the topics between them."""
        while any(self._waiting.values()):
            for subtopology in self._plan.subtopologies:
                records = {topic: self._waiting[topic] for topic in subtopology.source_topics}
                if any(records.values()):
                    for topic in records:
                        self._waiting[topic] = []
                    self._batch(subtopology, records)

    def _batch(self, subtopology: SubTopology, records: Mapping[str, list[_Piped]]) -> None:
        piped = {(TopicPartition(topic, r.partition), r.offset): r for topic, own in records.items() for r in own}
        # Of each partition, the first offset is the last one here.
        starts = dict(sorted(piped, reverse=True))
        upto = {place: self._offsets[place] for place in starts}
        refused = RefusedRecords()
        for (place, offset), r in piped.items():
            if r.timestamp_ms > LATEST_TIMESTAMP_MS:
                refused.add(place, offset, Refusal(IMPOSSIBLE_TIMESTAMP))
        pipelines, statements = subtopology.pipelines, self._statements[subtopology.index]

        def run(spans: Sequence[Span], is_careful: bool) -> dict[int, pa.Table]:
            rows = SparkRows.of(self._frame(piped, spans))
            return statements.tables(rows, range(len(pipelines)), offsets_of(spans), is_careful=is_careful)

        found = refused.read(starts, upto, run)
        unread = refused.between(starts, upto)
        tables = [
            with_refused(found[number], subtopology.sources[pipeline.source].topic, unread)
            for number, pipeline in enumerate(pipelines)
        ]
        letters: list[DeadLetter] = []
        if bad_records(tables):
            letters = self._dead_letters(subtopology, self._frame(piped, refused.readable(starts, upto)), piped, unread)
        for partition in range(self._partitions):
            task = self._tasks[TaskId(subtopology.index, partition)]
            ends = {t: self._offsets.get(TopicPartition(t, partition), 0) for t in subtopology.source_topics}
            given = [rows_of_partition(table, partition) for table in tables]
            own = tuple(letter for letter in letters if letter.partition == partition)
            self._take(task, task.prepare(TaskInput(ends, given, own), self._now_ms))

    def _frame(self, piped: Mapping[_Place, _Piped], spans: Sequence[Span]) -> DataFrame:
        """Return the piped records of some spans as Spark's Kafka source has them."""
        rows = [
            {"key": r.key, "value": r.value, "topic": place.topic, "partition": r.partition, "offset": r.offset}
            | {
                "timestamp": r.timestamp_ms * 1000,
                "headers": [dict(zip(_HEADER, h, strict=True)) for h in r.headers] or None,
            }
            for place, start, end in spans
            for r in (piped[place, offset] for offset in range(start, end))
        ]
        return self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=KAFKA_RECORDS))

    def _dead_letters(
        self, subtopology: SubTopology, frame: DataFrame, piped: Mapping[_Place, _Piped], unread: Refused
    ) -> list[DeadLetter]:
        """Return the bad records in the order of topic, partition and offset. Spark finds them, as in production."""
        view = f"test_driver_{subtopology.index}"
        found = {(place, offset): refusal for place, own in unread.items() for offset, refusal in own.items()}
        for source in subtopology.sources:
            frame.where(frame["topic"] == source.topic).createOrReplaceTempView(view)
            places = self._spark.sql(dead_letter_places_sql(subtopology, source, view, self._ahead_ms)).collect()
            found |= {
                (TopicPartition(source.topic, p[Partial.PARTITION]), p[Partial.RECORD_OFFSET]): Refusal(p["reason"])
                for p in places
            }
        letters: list[DeadLetter] = []
        for place, offset in sorted(found):
            refusal, r = found[place, offset], piped[place, offset]
            letter = DeadLetter(refusal.reason, place.topic, place.partition, offset, r.key, r.value, r.headers)
            letters.append(replace(letter, timestamp_ms=r.timestamp_ms, details=refusal.details))
        return letters

    def _take(self, task: Task, update: TaskUpdate) -> None:
        task.apply(update, {p.topic: 0 for p in task.changelogs}, self._now_ms)
        self.late_records += update.late_rows
        for output in update.outputs:
            for message in output.messages:
                self._emit(output.topic, message, output.partition)
        dlq = dlq_topic(self._plan.application_id)
        for letter in update.dead_letters:
            key, value, headers = dead_letter_record(letter, NO_LIMITS.of(dlq))
            record = TestRecord(
                _text(KeySerde.STRING, key), value, self._now_ms, tuple(headers), self._partition_of(key)
            )
            self._topics.setdefault(dlq, []).append(record)

    def _emit(self, topic: str, message: Message, chosen: int | None) -> None:
        """Write a record to a topic. `chosen` is the partition that a partitioner has chosen; None if the key decides."""
        key, value, at, headers = (
            message["key"],
            message["value"],
            message["timestamp"],
            tuple(message.get("headers", ())),
        )
        partition = self._partition_of(key) if chosen is None else chosen
        read = None if value is None else json.loads(value)
        kind = self._windowed_keys.get(topic)
        serde = self._key_serdes.get(topic, KeySerde.STRING)
        named = _text(serde, key) if kind is None or key is None else window_key(kind, key)
        self._topics.setdefault(topic, []).append(TestRecord(named, read, at, headers, partition))
        if topic in self._waiting:
            self._append(topic, key, value, at, headers, partition)

    def read(self, topic: str) -> list[TestRecord]:
        """Commit the piped records, and return the records written to a topic since it was last read."""
        self.commit()
        return self._topics.pop(topic, [])

    def store(self, name: str) -> dict[Any, Any]:
        """Commit the piped records, and return the contents of a store.

        Keys are the record's key, or (key, window start), or (key, session start, session end). In a buffer of `suppress`
        they are (key, window start, window end). In a store of a join of streams they are (key, timestamp, counter), where the
        counter distinguishes rows of equal key and timestamp; in that of its rows without a partner "left" or "right" follows.
        Values are dictionaries of the aggregates or of the row; None if the deletion of a window waits in a buffer. The keys
        of a store that keeps the order of another are bytes. Raises `InvalidTopology` for an unknown store.
        """
        self.commit()
        found: dict[Any, Any] = {}
        known = False
        for subtopology in self._plan.subtopologies:
            layouts, roles = value_layouts(subtopology), roles_of(subtopology)
            for spec in subtopology.stores:
                if spec.name != name:
                    continue
                known, role = True, roles.get(name)
                aggregates = next((a.aggregates for a in subtopology.aggregations if a.store == spec), ())
                for partition in range(self._partitions):
                    store = self._stores[TaskId(subtopology.index, partition)][name]
                    for segment in store.segments():
                        for key, value in store.items(segment):
                            named = stored_key(role, spec.kind, key)
                            found[named] = stored_value(role, spec, layouts[name], aggregates, value)
        if not known:
            names = ", ".join(sorted(store.name for store in self._plan.stores))
            raise InvalidTopology(f"the topology has no store '{name}'; it has {names}")
        return found


def _store(spec: StoreSpec, directory: TaskDirectory) -> Store:
    """Create an in-memory store, whatever kind the topology declares, except for a custom store."""
    if spec.custom is None:
        return MemoryStore()
    folder = directory.store_path(spec.name)
    folder.mkdir(parents=True)
    store: Store = load_code(spec.custom, f"store {spec.name}")(folder)
    return store


def _text(serde: KeySerde, key: bytes | None) -> str | bytes | None:
    try:
        return None if key is None else serde.decode(key)
    except ValueError:
        return key
