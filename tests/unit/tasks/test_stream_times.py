"""Each node has its own stream time, which advances only with records that reach the node."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitRecord
from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks.partials import Status
from tidemark.tasks.task import Task, TaskInput
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling

SECOND = 1000
WALL = 10_000 * SECOND


def a_plan():
    """Pulses are counted per minute; one branch of them is filtered; patients are a table that pulses are joined with."""
    topology = Topology("times")
    pulses = topology.stream("pulses", schema="id STRING, at BIGINT, bpm INT", key="id", timestamp="at")
    patients = topology.table(
        "patients", schema="id STRING, ward STRING, at BIGINT", key="id", timestamp="at", store="patients"
    )
    pulses.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="counts")
    fast = pulses.filter("bpm > 100")
    fast.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="fast")
    pulses.select("bpm AS rate").join(patients.to_stream().select("ward").to_table(store="wards")).to("joined")
    return topology.plan()


class Piped:
    """One task of the plan; `pipe` takes one batch of (topic, key, seconds, bpm) and commits it."""

    def __init__(self, folder) -> None:
        self.plan = a_plan()
        (self.subtopology,) = self.plan.subtopologies
        self.stores = {store.name: MemoryStore() for store in self.subtopology.stores}
        self.directory = InstanceDirectory(folder, "times", 0)
        self.task = self.open(StreamTimes.none())

    def open(self, times: StreamTimes) -> Task:
        return Task(
            application_id="times", topology_version="1", task_id=TaskId(0, 0), epoch=1, subtopology=self.subtopology,
            stores=self.stores, directory=self.directory.open_task(TaskId(0, 0)),
            next_offsets=dict.fromkeys(self.subtopology.source_topics, 0), stream_times=times, batch=0,
            sink_partitions={"joined": 1}, wall_ms=WALL,
        )  # fmt: skip

    def pipe(self, *records):
        tables = [self.table(pipeline, records) for pipeline in self.subtopology.pipelines]
        update = self.task.prepare(TaskInput(self.task.next_offsets, tables, ()), WALL)
        self.task.apply(update, {p.topic: 0 for p in self.task.changelogs}, WALL)
        return update

    def table(self, pipeline, records):
        rows = []
        for offset, (topic, key, seconds, bpm) in enumerate(records):
            if topic != self.subtopology.sources[pipeline.source].topic:
                continue
            at = seconds * SECOND
            kept = not any("bpm > 100" in getattr(step, "condition", "") for step in pipeline.steps) or bpm > 100
            row = {
                "__p": 0,
                "__status": Status.GOOD if kept else Status.FILTERED,
                "__rows": 1,
                "__max_ts": at,
                "__key": key,
            }
            if pipeline.aggregation is not None:
                row |= {"__last_offset": offset, "__window": at // (60 * SECOND) * 60 * SECOND, "n": 1}
            else:
                row |= {"__record_offset": offset, "__deleted": False, "__value": "{}"}
                row |= {f"v.{column.name}": _VALUES[column.type] for column in pipeline.columns}
            rows.append(row)
        kinds = {
            "__p": pa.int32(),
            "__status": pa.int32(),
            "__rows": pa.int64(),
            "__max_ts": pa.int64(),
            "__key": pa.string(),
        }
        if pipeline.aggregation is not None:
            kinds |= {"__last_offset": pa.int64(), "__window": pa.int64(), "n": pa.int64()}
        else:
            kinds |= {
                "__record_offset": pa.int64(),
                "__deleted": pa.bool_(),
                "__value": pa.string(),
                "__headers": _HEADERS,
            }
            kinds |= {f"v.{column.name}": _TYPES[column.type] for column in pipeline.columns}
        return pa.Table.from_pylist(rows, pa.schema(kinds))


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_VALUES = {"STRING": "x", "BIGINT": 1, "INT": 1}
_TYPES = {"STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32()}


@pytest.fixture
def piped(tmp_path):
    made = Piped(tmp_path)
    yield made
    made.task.close()
    made.directory.close()


def test_should_not_make_records_late_because_of_another_topic(piped):
    piped.pipe(("patients", "p1", 9000, 0))
    assert piped.pipe(("pulses", "p1", 5, 60)).late_rows == 0
    assert piped.pipe(("pulses", "p1", 70, 60), ("patients", "p1", 9001, 0)).late_rows == 0
    assert piped.pipe(("pulses", "p1", 6, 60)).late_rows == 1


def test_should_not_advance_the_time_of_a_node_with_filtered_records(piped):
    piped.pipe(("pulses", "p1", 500, 60))
    update = piped.pipe(("pulses", "p1", 5, 120))
    # Late where every pulse is counted, in time where only fast ones are.
    assert update.late_rows == 1
    assert update.stream_times.of("counts") == 500 * SECOND
    assert update.stream_times.of("fast") == 5 * SECOND


def test_should_advance_the_time_of_the_task_with_every_processed_record(piped):
    update = piped.pipe(("pulses", "p1", 5, 60), ("patients", "p1", 40, 0))
    assert update.stream_times.task_ms == 40 * SECOND
    assert update.stream_times.of("patients") == 40 * SECOND
    assert update.stream_times.of("fast") == NO_STREAM_TIME


def test_should_continue_with_the_time_of_each_node_after_a_restart(piped):
    update = piped.pipe(("patients", "p1", 9000, 0), ("pulses", "p1", 500, 60))
    kept = OffsetMetadata.decode(OffsetMetadata(1, update.stream_times, "1").encode())
    piped.task.close()
    piped.task = piped.open(kept.stream_times)
    assert piped.pipe(("pulses", "p1", 480, 60)).late_rows == 0
    assert piped.pipe(("pulses", "p1", 5, 60)).late_rows == 1


def test_should_mark_each_store_with_the_time_of_its_node(piped):
    piped.pipe(("patients", "p1", 9000, 0), ("pulses", "p1", 500, 60))
    assert piped.stores["counts"].checkpoint.stream_time_ms == 500 * SECOND
    assert piped.stores["patients"].checkpoint.stream_time_ms == 9000 * SECOND


def test_should_refuse_commit_records_with_one_stream_time_per_task():
    with pytest.raises(StartRefused, match=r"one stream time per task.*another application id"):
        CommitRecord.from_bytes(b'{"version":1,"stream_time_ms":5}')


def test_should_take_the_newest_time_of_each_store_over_tasks():
    times = [StreamTimes(5, {"a": 5, "b": 1}), StreamTimes(9, {"b": 2})]
    assert StreamTimes.newest(times, []) == StreamTimes(9, {"a": 5, "b": 2})


def test_should_take_marks_over_tasks_only_for_window_stores():
    times = [StreamTimes(5, {}, {"rows": 5, "waiting": 1}), StreamTimes(9, {}, {"rows": 9, "waiting": 8})]
    assert StreamTimes.newest(times, ["rows"]) == StreamTimes(9, {}, {"rows": 9})


def test_should_keep_times_under_the_current_store_names():
    assert StreamTimes(9, {"a": 5, "b": 1}).renamed({"a": "c"}) == StreamTimes(9, {"c": 5})
