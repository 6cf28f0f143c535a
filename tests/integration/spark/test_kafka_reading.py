"""Bounded reads have the records that Spark's own Kafka source has, and fail where records are gone."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from spark_jobs.kafka_reading import KafkaReader
from spark_jobs.statements import Statements

from tidemark.clock import wall_clock_ms
from tidemark.names import TopicPartition
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(360)]

PARTITIONS, RECORDS = 3, 40
COLUMNS = ["topic", "partition", "offset"]


@pytest.fixture
def topic(settings, create_topic, unique):
    """A topic with `RECORDS` records in each partition; each fifth has no value, each seventh no key, each third a header."""
    now_ms = wall_clock_ms()
    name = create_topic(unique("read"), partitions=PARTITIONS, cleanup_policy="delete")
    producer, refused = Producer({"bootstrap.servers": settings.bootstrap_servers}), []
    for number in range(RECORDS):
        value = None if number % 5 == 0 else f"value {number}"
        key = None if number % 7 == 0 else f"key {number}"
        headers = [("h", b"1"), ("empty", None)] if number % 3 == 0 else None
        for partition in range(PARTITIONS):
            producer.produce(
                name, value, key, partition, timestamp=now_ms + number, headers=headers,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )  # fmt: skip
    assert (producer.flush(60), refused) == (0, [])
    return name


@pytest.mark.parametrize("has_headers", [False, True])
def test_should_read_what_sparks_own_source_reads(spark, settings, topic, has_headers):
    starts = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 11, TopicPartition(topic, 2): 40}
    ends = {TopicPartition(topic, 0): 40, TopicPartition(topic, 1): 30, TopicPartition(topic, 2): 40}
    theirs = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("includeHeaders", str(has_headers).lower())
        .option("assign", json.dumps({topic: [0, 1, 2]}))
        .option("startingOffsets", offsets(starts))
        .option("endingOffsets", offsets(ends))
        .load()
    )
    reader = KafkaReader(spark, settings, has_headers=has_headers)
    ours = reader.between(starts, ends)
    assert ours.schema == theirs.schema
    rows = ours.orderBy(COLUMNS).collect()
    assert len(rows) == 40 + 19
    assert rows == theirs.orderBy(COLUMNS).collect()
    # The consumers are kept, so the next read begins in the middle of what they have fetched, or before it.
    for start, end in ((5, 9), (9, 40), (2, 3)):
        again = reader.between({TopicPartition(topic, 1): start}, {TopicPartition(topic, 1): end}).collect()
        assert [row.offset for row in again] == list(range(start, end))


def test_should_read_nothing_between_equal_offsets(spark, settings, topic):
    place = TopicPartition(topic, 0)
    assert KafkaReader(spark, settings).between({place: 7}, {place: 7}).collect() == []


def test_should_fail_if_the_first_records_were_deleted(spark, settings, topic):
    place = TopicPartition(topic, 0)
    delete_before(settings, topic, 0, 10)
    with pytest.raises(Py4JJavaError, match=r"Could not read records in offset \[5, 20\)"):
        KafkaReader(spark, settings).between({place: 5}, {place: 20}).collect()
    assert KafkaReader(spark, settings).between({place: 10}, {place: 20}).count() == 10


def test_a_statement_that_was_planned_before_should_fail_if_records_are_gone(spark, settings, topic):
    place, reader, topology = TopicPartition(topic, 1), KafkaReader(spark, settings), Topology("app")
    topology.stream(topic, schema="id STRING", key="id").group_by_key().count(name="n").to("out")
    statements = Statements(topology.plan().subtopologies[0], "of_gone_records", 0)
    for start, end in ((0, 40), (7, 20)):
        table = statements.tables(reader.rows_between({place: start}, {place: end}), [0], end - start)[0]
        assert sum(table.column("__rows").to_pylist()) == end - start
    delete_before(settings, topic, 1, 10)
    with pytest.raises(Py4JJavaError, match=r"Could not read records in offset \[5, 20\)"):
        statements.tables(reader.rows_between({place: 5}, {place: 20}), [0], 15)


def delete_before(settings, topic, partition, offset):
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for deleted in admin.delete_records([ClientPartition(topic, partition, offset)]).values():
        deleted.result(60)


def offsets(places):
    """Offsets of one topic in the form that Spark's Kafka source expects."""
    (topic,) = {place.topic for place in places}
    return json.dumps({topic: {str(place.partition): offset for place, offset in places.items()}})
