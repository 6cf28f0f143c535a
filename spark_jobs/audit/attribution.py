"""Finds the task and batch of each record and writes both to files. Runs in Spark's Python workers, so it imports little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from tidemark.kafka.partitioner import partitions_of
from tidemark.topology.key_serde import KeySerde

Batches = Mapping[tuple[str, int, int], tuple[list[int], list[int], list[int]]]
"""The batches by (topic, partition, partition of the task): their start offsets, end offsets and numbers, in order."""

_GIVEN = ("topic", "partition", "offset", "ts_ms", "key", "value", "of_topic", "of_partition", "of_offset", "of_reason")
_REPEATED = ["role", "topic", "key"]
_STATISTICS = ["role", "topic"]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AuditedTopicRole:
    """The role of a topic in the audit, and how the task of its records is found.

    If `own`, the task of a record is the number of its partition. Otherwise it is murmur2 of the record's key, without the
    last `suffix_bytes`, over `tasks` tasks. If `placed` is set, the record must be in the partition that murmur2 of that key
    gives over `placed` partitions. `key_serde` is the form of the topic's keys, `task_serde` the form in which a key decides
    its task.
    """

    role: str
    sub: int
    own: bool
    tasks: int
    placed: int | None
    suffix_bytes: int = 0
    key_serde: KeySerde = KeySerde.STRING
    task_serde: KeySerde = KeySerde.STRING


class Attribution:
    """Adds role, task, batch and home to Arrow batches of Kafka records. `spark_jobs.audit.reading` describes the columns."""

    def __init__(self, roles: Mapping[str, AuditedTopicRole], batches: Batches) -> None:
        self._roles = dict(roles)
        self._batches = dict(batches)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from self._rows(batch)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        topics = batch.column("topic")
        for topic in pc.unique(topics).to_pylist():
            rows = batch.filter(pc.equal(topics, topic))
            yield self._topic(topic, rows)

    def _topic(self, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        role = self._roles[topic]
        keys: Sequence[bytes] = rows.column("key").fill_null(b"").to_pylist()
        partitions = rows.column("partition").to_numpy()
        offsets = rows.column("offset").to_numpy()
        bare = [key[: -role.suffix_bytes] for key in keys] if role.suffix_bytes else keys
        home = None if role.placed is None else partitions_of(bare, role.placed)
        if role.own:
            tasks = partitions
        elif role.key_serde is not role.task_serde:
            tasks = partitions_of([_in_form_of_tasks(role, key) for key in bare], role.tasks)
        elif home is not None and role.placed == role.tasks:
            tasks = home
        else:
            tasks = partitions_of(bare, role.tasks)
        numbers = np.full(len(rows), -1, dtype=np.int64)
        for partition in np.unique(partitions):
            for task in np.unique(tasks[partitions == partition]):
                chosen = (partitions == partition) & (tasks == task)
                numbers[chosen] = self._numbers(topic, int(partition), int(task), offsets[chosen])
        if not role.own:
            # A record without a key may belong to any task.
            numbers[rows.column("key").is_null().to_numpy(zero_copy_only=False)] = -1
        count = len(rows)
        columns = {
            "role": pa.repeat(role.role, count),
            **{name: rows.column(name) for name in _GIVEN},
            "sub": pa.array(np.full(count, role.sub, dtype=np.int32)),
            "p": pa.array(np.asarray(tasks, dtype=np.int32)),
            "batch": pa.array(numbers, mask=numbers < 0),
            "home": pa.nulls(count, pa.int32()) if home is None else pa.array(np.asarray(home, dtype=np.int32)),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _numbers(self, topic: str, partition: int, task: int, offsets: _Numbers) -> _Numbers:
        known = self._batches.get((topic, partition, task))
        if known is None:
            return np.full(len(offsets), -1, dtype=np.int64)
        starts, ends, batches = (np.asarray(column, dtype=np.int64) for column in known)
        at = np.searchsorted(starts, offsets, side="right") - 1
        found = np.where(at >= 0, batches[np.maximum(at, 0)], -1)
        return np.where(offsets < ends[np.maximum(at, 0)], found, -1)


def _in_form_of_tasks(role: AuditedTopicRole, key: bytes) -> bytes:
    """Return the bytes by which the task of a key was chosen. A key without a text is not from a task, and stays as it is."""
    try:
        return role.task_serde.encode(role.key_serde.decode(key))
    except ValueError:
        return key


@dataclass(frozen=True)
class Recorder:
    """Writes the results of `attribution` to a file in `folder`, and yields the number of its records.

    A Spark task that runs again writes the same file again. The file has another name until it is complete.
    """

    attribution: Attribution
    folder: Path
    part: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        name = f"{self.part}-{context.partitionId() if context else 0}"
        writing, records = self.folder / f".{name}-{context.attemptNumber() if context else 0}", 0
        with ExitStack() as opened:
            file: pq.ParquetWriter | None = None
            for rows in self.attribution(batches):
                file = file or opened.enter_context(
                    pq.ParquetWriter(writing, rows.schema, use_dictionary=_REPEATED, write_statistics=_STATISTICS)
                )
                file.write_batch(rows)
                records += rows.num_rows
        if records:
            writing.rename(self.folder / f"{name}.parquet")
        yield pa.RecordBatch.from_pydict({"records": pa.array([records], pa.int64())})
