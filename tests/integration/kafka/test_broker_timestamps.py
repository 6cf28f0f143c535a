"""Topics that take event time as their records' timestamp, and those that refuse some of it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from tests.support.broker_timestamps import MINUTE
from tests.support.truth.topics import read_all

from tidemark.clock import wall_clock_ms
from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import BatchAborted, OutcomeUnknown, PreflightFailed
from tidemark.kafka.preflight import preflight
from tidemark.kafka.record_timestamps import sink_timestamp_bounds
from tidemark.topology.builder import Topology


def sending_to(sink, source, app):
    topology = Topology(app)
    stream = topology.stream(source, schema="id STRING")
    stream.to(sink)
    stream.repartition("id", "r").to_table("t")
    return topology.plan()


@pytest.mark.broker
def test_should_write_to_a_sink_that_refuses_old_records(broker, admin, settings, create_topic, unique, caplog):
    sink = create_topic(unique("out"), message_timestamp_before_max_ms="3600000")
    own = create_topic(unique("own"), message_timestamp_type="LogAppendTime")
    client = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    plan = sending_to(sink, create_topic(unique("in")), unique("app"))
    bounds = sink_timestamp_bounds(plan, settings, admin)
    assert set(bounds) == {sink}
    old = [{"key": b"k", "value": b"v", "timestamp": 5}]
    producer = TransactionalProducer(client, unique("app"), 10_000, 1000)
    producer.init(60)
    producer.begin()
    with pytest.raises((BatchAborted, OutcomeUnknown, KafkaException)):
        producer.send_many(sink, old)
        producer.flush()
        producer.commit()
    producer = TransactionalProducer(client, unique("app"), 10_000, 1000)
    producer.init(60)
    producer.begin()
    producer.send_many(sink, bounds[sink].within(old, wall_clock_ms()))
    producer.flush()
    producer.commit()
    (row,) = (row for rows in read_all(broker.bootstrap, [sink]).values() for row in rows)
    assert abs(row.timestamp_ms - (wall_clock_ms() - 59 * MINUTE)) < MINUTE
    assert sink_timestamp_bounds(sending_to(own, sink, unique("app")), settings, admin) == {}
    assert f"sink topic {own} has message.timestamp.type=LogAppendTime" in caplog.text


@pytest.mark.broker
def test_should_refuse_a_repartition_topic_that_does_not_keep_event_time(admin, settings, create_topic, unique):
    app = unique("app")
    create_topic(f"{app}-r-repartition", retention_ms="-1", message_timestamp_type="LogAppendTime")
    plan = sending_to(create_topic(unique("out")), create_topic(unique("in")), app)
    with pytest.raises(PreflightFailed, match=f"{app}-r-repartition has message.timestamp.type=LogAppendTime"):
        preflight(plan, settings, admin)
