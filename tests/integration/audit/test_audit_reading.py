"""The task and batch to which a record belongs, on Arrow batches, without Spark and without a broker."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer
from spark_jobs.audit.attribution import AuditedTopicRole
from spark_jobs.audit.reading import DLQ, SOURCE, AuditRange, Reader, header_sql
from spark_jobs.audit.throttle import Throttle
from spark_jobs.avro_values import AvroValues
from tests.support.schema_registry import FakeRegistry, serving

from tidemark.errors import TidemarkError
from tidemark.kafka.schema_registry import SchemaRegistry
from tidemark.names import TopicPartition
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.tasks.update import REFUSED_BY_SQL
from tidemark.topology.schema import parse_schema


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_should_read_the_headers_of_a_dead_letter_and_not_those_of_its_original_record(spark):
    rows = [
        ("produced again", [("tidemark.offset", b"7"), ("trace", b"x"), ("tidemark.offset", b"42")]),
        ("plain", [("tidemark.offset", b"43")]),
        ("of somebody else", [("trace", b"x")]),
        ("empty", []),
        ("none", None),
    ]
    frame = spark.createDataFrame(rows, "name STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    found = frame.selectExpr("name", header_sql("offset", "BIGINT")).collect()
    assert {row.name: row.of_offset for row in found} == {
        "produced again": 42, "plain": 43, "of somebody else": None, "empty": None, "none": None,
    }  # fmt: skip


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(360)
def test_should_say_that_it_cannot_read_a_kafka_timestamp(spark, settings, create_topic, unique, tmp_path, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    topic = create_topic(unique("in"), message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for at in (LATEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS + 1):
        producer.produce(topic, b"{}", b"k", timestamp=at)
    assert producer.flush(60) == 0
    role = AuditedTopicRole(SOURCE, 0, own=True, tasks=1, placed=1)
    reader = Reader(spark, settings, 1000, Throttle(1.0), AvroValues.of((), settings, spark))
    batches = {(topic, 0, 0): ([0], [2], [1])}

    def reading(end):
        return AuditRange({topic: role}, {TopicPartition(topic, 0): (0, end)}, batches, frozenset())

    assert reader.read(reading(1), tmp_path / "first", lambda _: None).count() == 1
    with pytest.raises(TidemarkError, match=re.escape("a Kafka timestamp after the year 294247")):
        reader.read(reading(2), tmp_path / "both", lambda _: None)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(360)
def test_should_read_around_records_of_avro_that_spark_refuses(
    spark, settings, create_topic, unique, tmp_path, monkeypatch
):
    """A field that nobody reads is deeper than the stack, and Avro skips it by level. The stream refuses such a record too."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    registry = FakeRegistry()
    number = registry.add("s", {
        "type": "record", "name": "Order", "fields": [
            {"name": "id", "type": "string"},
            {"name": "tree", "type": ["null", {"type": "record", "name": "Tree", "fields": [
                {"name": "under", "type": ["null", "Tree"]}]}]},
        ],
    })  # fmt: skip
    topic, other = create_topic(unique("in"), partitions=2), create_topic(unique("others"))
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    good, deep = (b"\x00" + number.to_bytes(4, "big") + b"\x02a" + b"\x02" * depth + b"\x00" for depth in (5, 50_000))
    written = {0: [good, deep, good, None, deep, b"{}"], 1: [good, deep]}
    for partition, values in written.items():
        for value in values:
            producer.produce(topic, value, b"k", partition)
    producer.produce(other, b"{}", b"k")
    assert producer.flush(60) == 0
    letters = create_topic(unique("dlq"))
    for partition, offset in ((0, 1), (0, 4), (1, 1)):
        told = {"topic": topic, "partition": str(partition), "offset": str(offset), "reason": REFUSED_BY_SQL}
        producer.produce(letters, deep, b"k", headers={f"tidemark.{name}": text for name, text in told.items()})
        assert producer.flush(60) == 0
    role = AuditedTopicRole(SOURCE, 0, own=True, tasks=2, placed=None)
    of_letters = AuditedTopicRole(DLQ, -1, own=False, tasks=1, placed=None)
    places = {TopicPartition(topic, 0): (0, 6), TopicPartition(topic, 1): (0, 2), TopicPartition(other, 0): (0, 1)}
    batches = {(place.topic, place.partition, place.partition): ([0], [end], [1]) for place, (_, end) in places.items()}
    with serving(registry) as url:
        values = AvroValues(
            {topic: parse_schema("id STRING", "test")},
            lambda: SchemaRegistry(settings.model_copy(update={"schema_registry_url": url})),
            spark,
        )
        reader = Reader(spark, settings, 1000, Throttle(1.0), values)
        roles = {topic: role, other: role, letters: of_letters}

        def read(count):
            reading = AuditRange(roles, {**places, TopicPartition(letters, 0): (0, count)}, batches, frozenset())
            return reader.read(reading, tmp_path / f"letters-{count}", lambda _: None)

        # How deep a record may be depends on how warm a JVM is: the stream may have read what the audit cannot.
        with pytest.raises(
            TidemarkError, match=re.escape(f"{TopicPartition(topic, 1)} offset 1 cannot be decoded here")
        ):
            read(2)
        found = read(3).where("role = 'source'").collect()
    of_good, of_bad = b'{"id":"a"}', b"not Avro with a known schema"
    assert sorted(((row.topic == other, row.partition, row.offset), row.value) for row in found) == [
        ((False, 0, 0), of_good), ((False, 0, 1), of_bad), ((False, 0, 2), of_good), ((False, 0, 3), None),
        ((False, 0, 4), of_bad), ((False, 0, 5), of_bad), ((False, 1, 0), of_good), ((False, 1, 1), of_bad),
        ((True, 0, 0), b"{}"),
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_should_decode_records_that_are_too_deep_for_the_stack_of_a_new_stream():
    """The code of a new JVM is not compiled, so a record needs more of the stack than in a stream that has run for long."""
    script = """
        from types import SimpleNamespace
        from spark_jobs.audit.main import session_settings
        from spark_jobs.avro_values import AvroValues
        from spark_jobs.session import spark_session
        from tidemark.topology.schema import parse_schema

        tree = {"type": "record", "name": "Tree", "fields": [{"name": "under", "type": ["null", "Tree"]}]}
        fields = [{"name": "id", "type": "string"}, {"name": "tree", "type": ["null", tree]}]
        registry = SimpleNamespace(avro=lambda _: {"type": "record", "name": "Order", "fields": fields})
        spark = spark_session(session_settings(), "deep")
        values = AvroValues({"in": parse_schema("id STRING", "test")}, lambda: registry, spark)
        records = spark.createDataFrame(
            [("in", bytes([0, 0, 0, 0, 1, 2, 97]) + bytes([2]) * 10_000 + bytes([0]))], "topic STRING, value BINARY"
        )
        assert values.learn(records)
        print([bytes(row.value) for row in values.frame(records).collect()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.strip() == str([b'{"id":"a"}']), done.stderr[-2000:]
