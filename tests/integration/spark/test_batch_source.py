"""The source of batches on a real broker: it keeps nothing of earlier batches, so that it can run for months."""

from __future__ import annotations

import json
import threading
import time

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JError
from spark_jobs import batch_source
from spark_jobs.batch_source import SparkBatchSource

from tidemark.instance.transaction_capacity import BatchSize
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(360)]

_BATCHES, _RECORDS = 10, 1000
_RECORD = "org.apache.kafka.clients.consumer.ConsumerRecord"


def records_in_memory(spark):
    """Records of Kafka that live in the JVM, counted by itself after a full collection."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway

    def array(kind, *values):
        made = gateway.new_array(kind, len(values))
        for number, value in enumerate(values):
            made[number] = value
        return made

    # By reflection, as the server's own class is none that others may call.
    named = jvm.java.lang.Class.forName
    types = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    invoke = named("javax.management.MBeanServer").getMethod("invoke", array(jvm.java.lang.Class, *map(named, types)))
    asked = array(
        jvm.java.lang.Object,
        jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand"),
        "gcClassHistogram",
        array(jvm.java.lang.Object, array(jvm.java.lang.String)),
        array(jvm.java.lang.String, "[Ljava.lang.String;"),
    )
    lines = invoke.invoke(jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer(), asked).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split()[3:4] == [_RECORD])


def test_should_not_keep_the_records_of_batches_with_dead_letters_in_memory(
    spark, settings, kafka_jars, create_topic, unique
):
    """Such a batch is read a second time. Spark would keep its records for minutes, and they would fill the heap."""
    topic = create_topic(unique("in"), partitions=1)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for number in range(_BATCHES * _RECORDS):
        producer.produce(topic, b"{broken" if number % 100 == 0 else json.dumps({"id": "k"}).encode(), b"k")
    assert producer.flush(60) == 0
    topology = Topology(unique("letters"))
    topology.stream(topic, schema="id STRING", key="id").group_by_key().count(name="n").to(unique("out"))
    source = SparkBatchSource(spark, topology.plan(), settings, 0)
    before, letters = records_in_memory(spark), 0
    source.start({TopicPartition(topic, 0): 0}, BatchSize(_RECORDS))
    try:
        deadline = time.monotonic() + 150
        while letters < _BATCHES * _RECORDS // 100 and time.monotonic() < deadline:
            batch = source.next(1.0)
            letters += len(batch.dead_letters) if batch else 0
    finally:
        source.stop()
    assert letters == _BATCHES * _RECORDS // 100
    assert wait_until(lambda: records_in_memory(spark) <= before + _RECORDS, 90, every_s=1)


@pytest.mark.parametrize(
    "is_first", [True, False], ids=["warmed up before it reads", "asked to warm up while it reads"]
)
def test_should_read_the_same_batches_after_a_warm_up(spark, settings, kafka_jars, create_topic, unique, is_first):
    """Many of the last records, which a warm-up reads, are in an unusual form. That decides nothing for the whole batch."""
    topic = create_topic(unique("in"), partitions=2)
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for number in range(_RECORDS):
        value = '{"n":1,"id":"k"}' if number >= _RECORDS - _RECORDS // 20 else '{"id":"k","n":1}'
        producer.produce(topic, value, b"k", number % 2)
    assert producer.flush(60) == 0
    topology = Topology(unique("warm"))
    topology.stream(topic, schema="id STRING, n INT", key="id").group_by_key().count(name="n").to(unique("out"))
    source = SparkBatchSource(spark, topology.plan(), settings, 0)
    if is_first:
        source.warm_up()
    source.start({TopicPartition(topic, p): 0 for p in range(2)}, BatchSize(_RECORDS))
    try:
        if not is_first:
            source.warm_up()
        batches = []
        assert wait_until(lambda: batches.append(source.next(1.0)) or batches[-1] is not None, 120, every_s=0)
    finally:
        source.stop()
    assert sum(batches[-1].ends.values()) == _RECORDS
    (table,) = batches[-1].pipelines
    assert sum(table.column("__rows").to_pylist()) == _RECORDS
    assert (source._warming_up.ident is not None) is is_first
    # The next batch is read with the statements for the usual form.
    assert source._readers[0]._statements._waits == {0: 0}


def test_should_end_a_warm_up_that_does_not_end(spark, monkeypatch, unique):
    """As that of a broker which no batch needs, and which is away."""
    monkeypatch.setattr(batch_source, "_WARM_UP_S", 2)
    failed = []

    def read():
        with pytest.raises(Py4JError) as cancelled:
            spark.sql("SELECT reflect('java.lang.Thread', 'sleep', id + 600000) FROM range(1)").collect()
        failed.append(str(cancelled.value))

    warm_up = batch_source._WarmUp(spark, read, unique("warm-up"))
    warm_up.start()
    warm_up.wait(threading.Event())
    assert not warm_up.is_alive()
    assert "cancelled" in failed[0]


def test_should_not_log_that_consumers_are_released(spark):
    log4j = spark._jvm.org.apache.logging.log4j
    pool = log4j.LogManager.getLogger("org.apache.spark.sql.kafka010.consumer.InternalKafkaConsumerPool")
    assert pool.getLevel().toString() == "ERROR"
