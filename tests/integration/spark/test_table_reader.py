"""A table whose source topic is its changelog is restored to exactly what its live store held."""

from __future__ import annotations

import json
import time

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from spark_jobs.batch_source import SparkBatchSource

from tidemark.clock import wall_clock_ms
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TaskId, TopicPartition
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import WHOLE
from tidemark.stream_times import StreamTimes
from tidemark.tasks.task import Task, TaskInput
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(360)]

FUTURE_MS = 4_070_908_800_000


def records():
    """Keys and values of a topic with good and bad records, in order. The SQL of the timestamp raises if `beds` is 0."""
    good = {"ward": "A", "beds": 3, "at": wall_clock_ms()}
    yield b"good", json.dumps(good).encode()
    yield b"spaced", b'{ "beds":4,"at":17,   "ward":"B" }'
    yield b"broken-later", json.dumps(good).encode()
    yield b"broken-later", b"{no json"
    yield b"no-number", json.dumps({**good, "beds": "many"}).encode()
    yield b"number-as-text", json.dumps({**good, "beds": "5", "ward": 7}).encode()
    yield b"from-the-future", json.dumps({**good, "at": FUTURE_MS}).encode()
    yield b"no-time", json.dumps({"ward": "C"}).encode()
    yield b"more", json.dumps({**good, "unknown": [1, 2]}).encode()
    yield b"deleted", json.dumps(good).encode()
    yield b"deleted", None
    yield b"never-there", None
    yield b"\xff\xfe", json.dumps(good).encode()
    yield b"not-an-object", b"[1]"
    yield b"refused", json.dumps({**good, "beds": 0}).encode()
    yield b"last", json.dumps({**good, "ward": "Z"}).encode()


@pytest.fixture
def source(spark, settings, kafka_jars, create_topic, unique):
    """A source of one optimised table with its topic filled."""
    topic = create_topic(unique("wards"), partitions=1, cleanup_policy="compact")
    producer, refused = Producer({"bootstrap.servers": settings.bootstrap_servers}), []
    for key, value in records():
        producer.produce(topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
    assert (producer.flush(60), refused) == (0, [])
    topology = Topology(unique("tables"), optimised=True)
    table = topology.table(
        topic,
        schema="ward STRING, beds INT, at BIGINT",
        timestamp="CAST(at + 0 * element_at(array(1, 1, 1, 1, 1), beds) AS BIGINT)",
        store="wards",
    )
    table.to(unique("out"))
    made = SparkBatchSource(spark, topology.plan(), settings, 0)
    made.plan, made.topic = topology.plan(), topic
    yield made
    made.stop()


def live(source, folder):
    """The store after the stream has processed the whole topic."""
    subtopology = source.plan.subtopologies[0]
    store, directory = MemoryStore(), InstanceDirectory(folder, "tables", 0)
    task = Task(
        application_id="tables", topology_version="1", task_id=TaskId(0, 0), epoch=1, subtopology=subtopology,
        stores={"wards": store}, directory=directory.open_task(TaskId(0, 0)), next_offsets={source.topic: 0},
        stream_times=StreamTimes.none(), batch=0, sink_partitions=dict.fromkeys(subtopology.sink_topics, 1),
        wall_ms=wall_clock_ms(),
    )  # fmt: skip
    place, end = TopicPartition(source.topic, 0), len(list(records()))
    source.start({place: 0}, BatchSize(1000))
    deadline = time.monotonic() + 120
    while task.next_offsets[source.topic] < end and time.monotonic() < deadline:
        if batch := source.next(1.0):
            tables = [table.filter(pc.equal(table.column("__p"), 0)) for table in batch.pipelines]
            update = task.prepare(TaskInput({source.topic: batch.ends[place]}, tables, ()), wall_clock_ms())
            task.apply(update, {}, wall_clock_ms())
    source.stop()
    task.close()
    directory.close()
    assert task.next_offsets[source.topic] == end
    return dict(store.items(WHOLE))


def test_should_rebuild_what_the_live_store_held(source, tmp_path):
    held = live(source, tmp_path / "state")
    assert {b"good", b"spaced", b"last"} <= held.keys()
    assert not held.keys() & {b"deleted", b"never-there", b"not-an-object", b"from-the-future", b"refused"}
    (spec,) = source.plan.stores
    place, end = TopicPartition(source.topic, 0), len(list(records()))
    restored = {}
    for start, upto in ((0, 5), (5, end)):
        batches = list(source.read_table(spec, place, start, upto, lambda: True))
        assert batches[-1].next_offset == upto
        for batch in batches:
            restored |= zip(batch.keys, batch.values, strict=True)
    assert {key: value for key, value in restored.items() if value is not None} == held


def test_should_end_early_when_it_is_told_to_stop(source):
    (spec,) = source.plan.stores
    assert list(source.read_table(spec, TopicPartition(source.topic, 0), 0, 5, lambda: False)) == []
