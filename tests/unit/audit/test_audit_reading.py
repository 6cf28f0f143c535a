"""The task and batch to which a record belongs, on Arrow batches, without Spark and without a broker."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_jobs.audit.attribution import Attribution, AuditedTopicRole, Recorder
from spark_jobs.audit.reading import CHANGELOG, SINK, SOURCE, parts_of, reading_of
from tests.unit.audit.test_audit_ranges import TASK, history, position, ranged

from tidemark.audit.cut import Cut
from tidemark.kafka.partitioner import partitions_of
from tidemark.names import TaskId, TopicPartition
from tidemark.topology.builder import Topology
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.windows import session, tumbling

WRITTEN = [
    "role string", "topic string", "partition int32", "offset int64", "ts_ms int64", "key binary", "value binary",
    "of_topic string", "of_partition int32", "of_offset int64", "of_reason string",
    "sub int32", "p int32", "batch int64", "home int32",
]  # fmt: skip


KEYS = [f"k{n}".encode() for n in range(40)]


HOME = dict(zip(KEYS, partitions_of(KEYS, 3).tolist(), strict=True))


def given(rows):
    """An Arrow batch of (partition, offset, key), as Kafka gave them."""
    partitions, offsets, keys = zip(*rows, strict=True)
    count = len(rows)
    return pa.record_batch(
        {
            "topic": ["t"] * count,
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "ts_ms": pa.array([0] * count, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b""] * count, pa.binary()),
            "of_topic": pa.nulls(count, pa.string()),
            "of_partition": pa.nulls(count, pa.int32()),
            "of_offset": pa.nulls(count, pa.int64()),
            "of_reason": pa.nulls(count, pa.string()),
        }
    )


def attributed(role, batches, rows):
    """(task, batch, home) of each (partition, offset, key)."""
    found = pa.Table.from_batches(list(Attribution({"t": role}, batches)([given(rows)])))
    return list(zip(*(found.column(name).to_pylist() for name in ("p", "batch", "home")), strict=True))


@pytest.mark.parametrize(
    ("offset", "batch"), [(9, None), (10, 4), (14, 4), (15, 5), (19, 5), (20, None), (25, 6), (30, None)]
)
def test_should_find_the_batch_of_a_source_record_from_its_offset(offset, batch):
    role = AuditedTopicRole("source", 0, own=True, tasks=3, placed=None)
    batches = {("t", 1, 1): ([10, 15, 25], [15, 20, 30], [4, 5, 6])}
    assert attributed(role, batches, [(1, offset, b"k")]) == [(1, batch, None)]


def test_should_find_the_task_of_a_sink_record_and_its_expected_partition_by_key():
    role = AuditedTopicRole(SINK, 0, own=False, tasks=3, placed=3)
    # Two tasks write one partition; their batches begin where each saw it end.
    batches = {("t", 0, task): ([0, 10 + task], [10 + task, 99], [1, 2]) for task in range(3)}
    rows = [(0, 11, key) for key in KEYS]
    assert attributed(role, batches, rows) == [(HOME[key], 1 if HOME[key] == 2 else 2, HOME[key]) for key in KEYS]


def test_should_find_the_task_of_a_changelog_record_by_its_key_without_the_window():
    role = AuditedTopicRole(CHANGELOG, 0, own=True, tasks=3, placed=3, suffix_bytes=8)
    rows = [(2, 5, key + bytes(8)) for key in KEYS]
    assert attributed(role, {("t", 2, 2): ([0], [9], [7])}, rows) == [(2, 7, HOME[key]) for key in KEYS]


def test_should_find_the_task_of_a_sink_record_by_its_key_without_the_window():
    role = AuditedTopicRole(SINK, 0, own=False, tasks=3, placed=3, suffix_bytes=8)
    batches = {("t", 0, task): ([0], [99], [task]) for task in range(3)}
    rows = [(0, 11, key + bytes(8)) for key in KEYS]
    assert attributed(role, batches, rows) == [(HOME[key], HOME[key], HOME[key]) for key in KEYS]
    # As many partitions as the sink has need not be as many as there are tasks.
    five = partitions_of(KEYS, 5).tolist()
    role = replace(role, placed=5)
    assert attributed(role, batches, rows) == [(HOME[key], HOME[key], at) for key, at in zip(KEYS, five, strict=True)]


NUMBERS = [number * 977 - 5000 for number in range(40)]


def texts(numbers):
    return [str(number).encode() for number in numbers]


def longs(numbers):
    return [number.to_bytes(8, "big", signed=True) for number in numbers]


@pytest.mark.parametrize("partitions", [3, 5])
def test_should_find_the_task_of_a_sink_record_by_the_text_of_its_key_and_its_partition_by_the_bytes(partitions):
    role = AuditedTopicRole(SINK, 0, own=False, tasks=3, placed=partitions, key_serde=KeySerde.LONG)
    batches = {("t", 0, task): ([0], [99], [task]) for task in range(3)}
    tasks, homes = partitions_of(texts(NUMBERS), 3).tolist(), partitions_of(longs(NUMBERS), partitions).tolist()
    found = attributed(role, batches, [(0, 11, key) for key in longs(NUMBERS)])
    assert found == [(task, task, home) for task, home in zip(tasks, homes, strict=True)]
    # Bytes that no sink wrote in this form, and records without a key.
    assert [home for _, _, home in attributed(role, batches, [(0, 11, b"7")])] == partitions_of(
        [b"7"], partitions
    ).tolist()
    assert attributed(role, batches, [(0, 11, None)])[0][1] is None


def test_should_find_the_task_of_a_sink_record_by_the_form_of_the_sources_keys():
    role = AuditedTopicRole(SINK, 0, own=False, tasks=3, placed=3, task_serde=KeySerde.LONG)
    batches = {("t", 0, task): ([0], [99], [task]) for task in range(3)}
    tasks, homes = partitions_of(longs(NUMBERS), 3).tolist(), partitions_of(texts(NUMBERS), 3).tolist()
    found = attributed(role, batches, [(0, 11, key) for key in texts(NUMBERS)])
    assert found == [(task, task, home) for task, home in zip(tasks, homes, strict=True)]
    same = replace(role, key_serde=KeySerde.LONG)
    found = attributed(same, batches, [(0, 11, key) for key in longs(NUMBERS)])
    assert found == [(task, task, task) for task in tasks]


def test_should_know_the_forms_of_the_keys_of_sources_and_sinks():
    topology = Topology("app")
    orders = topology.stream("in", schema="x BIGINT", key_serde="long")
    orders.to("copies", key_serde="long").to("texts")
    orders.repartition(name="r").group_by_key().count(store="n").to("counts", key_serde="short")
    counts = {"in": 2, "copies": 2, "texts": 2, "counts": 2, "app-r-repartition": 2}
    found = reading_of(topology.plan(), Cut({}, [], {}, counts))
    forms = {topic: (role.key_serde, role.task_serde) for topic, role in found.roles.items() if role.role != CHANGELOG}
    assert forms == {
        "in": (KeySerde.LONG, KeySerde.STRING),
        "copies": (KeySerde.LONG, KeySerde.LONG),
        "texts": (KeySerde.STRING, KeySerde.LONG),
        "counts": (KeySerde.SHORT, KeySerde.STRING),
        "app-dlq": (KeySerde.STRING, KeySerde.STRING),
    }


def test_should_know_which_sinks_write_windowed_keys():
    topology = Topology("app")
    grouped = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key()
    grouped.windowed_by(tumbling("1m")).count(store="t").to("plain").to("times", windowed_key=True)
    grouped.windowed_by(session("1m")).count(store="s").to("sessions", windowed_key=True)
    found = reading_of(topology.plan(), Cut({}, [], {}, {"in": 2, "plain": 2, "times": 2, "sessions": 2}))
    sinks = {topic: role.suffix_bytes for topic, role in found.roles.items() if role.role == SINK}
    assert sinks == {"plain": 0, "times": 8, "sessions": 16}


def test_should_read_every_offset_once_in_parts_of_similar_size():
    spans = {TopicPartition("a", 0): (5, 105), TopicPartition("a", 1): (0, 7), TopicPartition("b", 0): (3, 3)}
    parts = list(parts_of(spans, 30))
    assert len(parts) == 4
    for place, (start, end) in spans.items():
        read = [offset for part in parts if place in part for offset in range(*part[place])]
        assert read == list(range(start, end))
    assert max(sum(b - a for a, b in part.values()) for part in parts) <= 30
    assert list(parts_of({}, 30)) == []


def test_should_write_the_records_of_a_spark_task_once_when_it_is_retried(tmp_path):
    attribution = Attribution({"t": AuditedTopicRole("source", 0, own=True, tasks=3, placed=None)}, {})
    record = Recorder(attribution, tmp_path, 7)
    batches = [given([(1, offset, b"k") for offset in range(start, start + 3)]) for start in (0, 3)]
    for _ in range(2):
        (counted,) = record(batches)
        assert counted.to_pydict() == {"records": [6]}
    (file,) = tmp_path.iterdir()
    assert file.name == "7-0.parquet"
    written = pq.read_table(file)
    assert written.column("offset").to_pylist() == list(range(6))
    assert [f"{name} {kind}" for name, kind in zip(written.schema.names, written.schema.types, strict=True)] == WRITTEN
    assert [count.to_pydict() for count in Recorder(attribution, tmp_path, 8)([])] == [{"records": [0]}]
    assert len(list(tmp_path.iterdir())) == 1


def test_should_treat_a_topic_as_a_source_when_the_application_writes_and_reads_it():
    topology = Topology("app")
    counted = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key().count(name="n", store="s")
    counted.to("mid")
    again = topology.stream("mid", schema="n BIGINT", key="_key").group_by_key()
    again.aggregate(high="max(n)", store="t").to("end")
    plan = topology.plan()
    partitions = {"in": 2, "mid": 2, "end": 2}
    number = {s.lead.topic: s.index for s in plan.subtopologies}
    runs = {}
    for topic, outputs in (("in", ("mid", "app-s-changelog")), ("mid", ("end", "app-t-changelog"))):
        task = TaskId(number[topic], 1)
        run = ranged([record_of(task, topic, outputs, batch) for batch in range(1, 4)])
        runs[task] = replace(run, task=task, until={t: {1: 80} for t in (*outputs, "app-dlq")})
    found = reading_of(plan, Cut(runs, [], {}, partitions))
    assert {topic: (role.role, role.sub) for topic, role in found.roles.items() if role.role in (SOURCE, SINK)} == {
        "in": (SOURCE, number["in"]),
        "mid": (SOURCE, number["mid"]),
        "end": (SINK, number["mid"]),
    }
    # The batches of `mid` are those of its reader, not those of the task that writes it.
    assert found.batches["mid", 1, 1] == ([20, 30], [30, 40], [2, 3])
    assert found.spans[TopicPartition("mid", 1)] == (20, 40)
    assert found.batches["end", 1, 1] == ([40, 60], [60, 80], [2, 3])


@pytest.mark.parametrize(("low", "start"), [(0, 65), (69, 69), (70, None), (71, None)])
def test_should_read_what_lies_between_two_audits_and_still_exists(low, start):
    topology = Topology("app")
    topology.stream("in", schema="id STRING", key="id").group_by_key().count(store="s").to("out")
    later = [replace(record, ends_before={"out": {1: 20 * record.batch - 10}}) for record in history(4, 5)]
    before = replace(position(3), outputs={"out": {1: 65}})
    run = replace(ranged(history(4, 5), before), records=tuple(later), until={"out": {1: 110}})
    cut = Cut({TASK: run}, [], {TopicPartition("out", 1): low}, {"in": 2, "out": 2})
    found = reading_of(topology.plan(), cut)
    batches = ([70, 90], [90, 110], [4, 5])
    if start is not None:
        batches = tuple([first, *rest] for first, rest in zip((start, 70, 3), batches, strict=True))
    assert found.batches["out", 1, 1] == batches
    assert found.spans[TopicPartition("out", 1)] == (start or max(70, low), 110)
    # A record that is gone lies in a batch of the cut only in the last case.
    assert found.lost == (frozenset(["out"]) if low > 70 else frozenset())


def record_of(task, source, outputs, batch):
    (known,) = history(batch, batch)
    ends = {topic: {1: 20 * batch} for topic in (*outputs, "app-dlq")}
    assert TASK.partition == task.partition
    return replace(known, task=task, sources={source: known.sources["in"]}, ends_before=ends)
