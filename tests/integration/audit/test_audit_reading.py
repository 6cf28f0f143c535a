"""The task and batch to which a record belongs, on Arrow batches, without Spark and without a broker."""

from __future__ import annotations

import re
import sys

import pytest
from confluent_kafka import Producer
from spark_jobs.audit.attribution import AuditedTopicRole
from spark_jobs.audit.reading import SOURCE, AuditRange, Reader, header_sql
from spark_jobs.audit.throttle import Throttle
from spark_jobs.avro_values import AvroValues

from tidemark.errors import TidemarkError
from tidemark.names import TopicPartition
from tidemark.stream_times import LATEST_TIMESTAMP_MS


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
