"""Recomputes what an application must have produced, by processing the batches of its commit records again.

The nodes and the SQL are the application's own: this finds what was lost, doubled or mixed up by a crash, a rebalance or a
restore, whatever the topology. That the nodes compute the right thing is for their own tests and for `tests/system/peers`.

Every batch of every task gets a partition number of its own in the records that Spark sees, so one query per branch makes
the partial results of all batches.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from spark_jobs.kafka_reading import KAFKA_RECORDS
from spark_jobs.prepared import SparkRows
from spark_jobs.statements import Statements
from tests.support.truth.compare import Claim
from tests.support.truth.topics import (
    NOTHING_PAST,
    Past,
    Place,
    Row,
    beginnings,
    committed_offsets,
    hidden_ends,
    read_all,
)

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.kafka.topics import user_topics
from tidemark.names import TaskId, changelog_topic, commits_topic, dlq_topic
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Writes
from tidemark.stream_times import StreamTimes
from tidemark.tasks.partials import rows_of_partition
from tidemark.tasks.task import Task, TaskInput
from tidemark.topology.plan import SubTopology, TopologyPlan

Contents = dict[bytes, bytes]
_AHEAD_MS = 3_600_000
_MOVED = (CommitKind.RESET, CommitKind.REPAIR)


@dataclass
class Replayed:
    """What should be there: records by sink topic, contents by (task, store), and faults in the records themselves."""

    sinks: dict[str, Counter[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    stores: dict[tuple[TaskId, str], Contents] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    dead_letters: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class Found:
    """How what is there differs from what should be."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    report: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Count a fault that is neither a lost nor a doubled record."""
        self.wrong += 1
        self.report.append(text)


def replay(bootstrap: str, plan: TopologyPlan, spark: SparkSession, past: Past = NOTHING_PAST) -> Replayed:
    """Read sources and commit records, and run every batch again. Blocks; nothing may be committed meanwhile."""
    done = Replayed()
    commits = commits_topic(plan.application_id)
    sources = list(dict.fromkeys(topic for s in plan.subtopologies for topic in s.source_topics))
    rows = read_all(bootstrap, [commits, *sources], past=past)
    history: dict[TaskId, list[CommitRecord]] = {}
    for place, found in rows.items():
        if place[0] == commits:
            for row in found:
                record = CommitRecord.from_bytes(row.value or b"")
                history.setdefault(record.task, []).append(record)
    begins = beginnings(bootstrap, [place for place in rows if place[0] != commits])
    for task, records in sorted(history.items()):
        begins_again = (commits, task.partition) in past.since
        done.faults += faults_of_first(records[0], begins, begins_again=begins_again)
    with tempfile.TemporaryDirectory() as folder:
        directory = InstanceDirectory(Path(folder), plan.application_id, 0)
        for subtopology in plan.subtopologies:
            tasks = {task: records for task, records in history.items() if task.subtopology == subtopology.index}
            _replay_sub_topology(done, plan, subtopology, tasks, rows, spark, directory)
        directory.close()
    return done


def faults_of_first(first: CommitRecord, begins: Mapping[Place, int], *, begins_again: bool) -> list[str]:
    """What is wrong with the first commit record of a task, with which the replay begins: records before it are missing.

    `begins` are the first offsets that the sources hold now. An application that `begins_again` is judged from some record on,
    which is also that of a reset.
    """
    kinds = (CommitKind.START, CommitKind.RESET) if begins_again else (CommitKind.START,)
    if first.kind not in kinds:
        return [
            f"task {first.task}: the first commit record is batch {first.batch} of kind {first.kind}, not of its start"
        ]
    if begins_again:
        return []
    return [
        f"task {first.task}: starts at offset {spans[first.task.partition][0]} of {topic}, which begins at "
        f"{begins[topic, first.task.partition]}"
        for topic, spans in first.sources.items()
        if spans[first.task.partition][0] > begins[topic, first.task.partition]
    ]


def _replay_sub_topology(
    done: Replayed,
    plan: TopologyPlan,
    subtopology: SubTopology,
    history: Mapping[TaskId, list[CommitRecord]],
    rows: Mapping[tuple[str, int], list[Row]],
    spark: SparkSession,
    directory: InstanceDirectory,
) -> None:
    batches = [(task, record) for task, records in sorted(history.items()) for record in records]
    listed: list[dict[str, object]] = []
    for number, (task, record) in enumerate(batches):
        if record.kind in _MOVED:
            continue  # Nothing of its range is processed.
        for topic, spans in record.sources.items():
            start, end = spans[task.partition]
            for row in rows[(topic, task.partition)]:
                if start <= row.offset < end:
                    listed.append(
                        {"key": row.key, "value": row.value, "topic": topic, "partition": number, "offset": row.offset}
                        | {"timestamp": row.timestamp_ms * 1000, "headers": [_header(*h) for h in row.headers] or None}
                    )
    view = f"replay_{subtopology.index}"
    rows_of_all = SparkRows.of(spark.createDataFrame(pa.Table.from_pylist(listed, schema=KAFKA_RECORDS)))
    numbers = range(len(subtopology.pipelines))
    tables = list(Statements(subtopology, view, _AHEAD_MS).tables(rows_of_all, numbers, len(listed)).values())
    number = 0
    for task_id, records in sorted(history.items()):
        stores = {store.name: MemoryStore() for store in subtopology.stores}
        task = Task(
            application_id=plan.application_id,
            topology_version=plan.version,
            task_id=task_id,
            epoch=0,
            subtopology=subtopology,
            stores=stores,
            directory=directory.open_task(task_id),
            next_offsets={topic: spans[task_id.partition][0] for topic, spans in records[0].sources.items()},
            stream_times=StreamTimes.none(),
            batch=records[0].batch - 1,
            sink_partitions={},
            wall_ms=records[0].commit_time_ms,
        )
        wanted = {record.rewound_to for record in records if record.kind is CommitKind.REWIND}
        kept: dict[int, tuple[StreamTimes, dict[str, list[Writes]]]] = {}
        for record in records:
            if record.kind is CommitKind.REWIND:
                number += 1
                _rewind(done, task, stores, record, kept)
                continue
            if record.kind in _MOVED:
                number += 1
                task.next_offsets, task.stream_times, task.batch = (
                    record.end_offsets, record.stream_times, record.batch,
                )  # fmt: skip
                continue
            given = [rows_of_partition(table, number) for table in tables]
            number += 1
            update = task.prepare(TaskInput(record.end_offsets, given, ()), record.commit_time_ms)
            starts = {topic: spans[task_id.partition][0] for topic, spans in record.sources.items()}
            if starts != task.next_offsets or record.batch != task.batch + 1:
                done.faults.append(f"task {task_id}: batch {record.batch} begins at {starts}, not {task.next_offsets}")
            if (record.stream_times, record.late_rows) != (update.stream_times, update.late_rows):
                done.faults.append(f"task {task_id}: batch {record.batch} has another stream time or other late rows")
            # What the task refuses by itself, beside the bad records that Spark finds.
            done.dead_letters += update.bad_rows + len(update.dead_letters)
            for output in update.outputs:
                counted = done.sinks.setdefault(output.topic, Counter())
                counted.update((message["key"], message["value"]) for message in output.messages)
            task.apply(update, {p.topic: 0 for p in task.changelogs}, record.commit_time_ms)
            if record.batch in wanted:
                kept[record.batch] = task.stream_times, {name: _contents(store) for name, store in stores.items()}
        for name, store in stores.items():
            done.stores[(task_id, name)] = {k: v for s in store.segments() for k, v in store.items(s)}
        done.ends |= {(topic, task_id.partition): offset for topic, offset in task.next_offsets.items()}
        task.close()


def _header(key: str, value: bytes | None) -> dict[str, object]:
    return {"key": key, "value": value}


def _contents(store: MemoryStore) -> list[Writes]:
    return [
        Writes(s, *map(list, zip(*items, strict=True))) for s in store.segments() if (items := list(store.items(s)))
    ]


def _rewind(
    done: Replayed,
    task: Task,
    stores: Mapping[str, MemoryStore],
    record: CommitRecord,
    kept: Mapping[int, tuple[StreamTimes, dict[str, list[Writes]]]],
) -> None:
    """Bring the state of an earlier batch back; the record's spans run from where the task stood to where it goes on."""
    starts = {topic: spans[task.id.partition][0] for topic, spans in record.sources.items()}
    if starts != task.next_offsets or record.batch != task.batch + 1 or record.rewound_to not in kept:
        done.faults.append(f"task {task.id}: rewind {record.batch} to {record.rewound_to} stands at {starts}")
        return
    stream_times, contents = kept[record.rewound_to]
    if record.stream_times != stream_times:
        done.faults.append(f"task {task.id}: rewind {record.batch} has another stream time than {record.rewound_to}")
    for name, store in stores.items():
        checkpoint = store.checkpoint
        assert checkpoint is not None
        gone = [Writes(write.segment, write.keys, [None] * len(write.keys)) for write in _contents(store)]
        store.put_many([*gone, *contents[name]], checkpoint, None)
    task.next_offsets, task.stream_times, task.batch = record.end_offsets, stream_times, record.batch


def compare_replay(
    bootstrap: str,
    plan: TopologyPlan,
    replayed: Replayed,
    past: Past = NOTHING_PAST,
    claim: Claim = Claim.EVERY_UPDATE,
    generations: Mapping[str, int] | None = None,
) -> Found:
    """Outputs, changelogs, dead letters, offsets and open transactions against what was replayed.

    `generations` by store: the changelogs that are in use, the first ones unless given.
    """
    found = Found()
    for fault in replayed.faults:
        found.note(fault)
    app = plan.application_id
    sinks = {topic for s in plan.subtopologies for topic in s.sink_topics}
    changelogs = {
        changelog_topic(app, store.name, (generations or {}).get(store.name, 0)): store.name
        for store in plan.stores
        if store.is_logged
    }
    dlq = dlq_topic(app)
    rows = read_all(bootstrap, [*sinks, *changelogs, dlq], past=past)
    for topic in sorted(sinks):
        there = Counter((row.key, row.value) for row in _of(rows, topic))
        wanted = replayed.sinks.get(topic, Counter())
        found.lost += (wanted - there).total()
        found.duplicated += (there - wanted).total()
        found.report += [f"{topic}: missing {pair}" for pair in list(wanted - there)[:3]]
        found.report += [f"{topic}: too many {pair}" for pair in list(there - wanted)[:3]]
    for topic, name in changelogs.items() if claim is not Claim.NOTHING else ():
        for (task, store), contents in replayed.stores.items():
            if store != name:
                continue
            folded: dict[bytes, bytes | None] = {}
            for row in rows.get((topic, task.partition), []):
                folded[row.key or b""] = row.value
            live = {key: value for key, value in folded.items() if value is not None}
            # What has expired from a window store is still in its changelog.
            for key in contents.keys() - live.keys() if claim is not Claim.WHAT_IS_LEFT else ():
                found.note(f"{topic}[{task.partition}]: {key!r} is missing")
            for key in contents.keys() & live.keys():
                if contents[key] != live[key]:
                    found.note(f"{topic}[{task.partition}]: {key!r} is {live[key]!r}, should be {contents[key]!r}")
    dead = sum(1 for _ in _of(rows, dlq))
    if dead != replayed.dead_letters:
        found.note(f"{dlq}: {dead} records, should be {replayed.dead_letters}")
    for place, offset in committed_offsets(bootstrap, app, replayed.ends).items():
        if offset != replayed.ends[place]:
            found.note(f"committed offset of {place} is {offset}, should be {replayed.ends[place]}")
    for place, ends in hidden_ends(bootstrap, [*user_topics(plan), *changelogs, dlq, commits_topic(app)]).items():
        found.note(f"{place}: read_committed end {ends[0]} is not the read_uncommitted end {ends[1]}")
    return found


def _of(rows: Mapping[tuple[str, int], list[Row]], topic: str) -> Iterable[Row]:
    return (row for place, found in rows.items() if place[0] == topic for row in found)
