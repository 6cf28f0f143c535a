"""The demo's activity on a real broker: every topic gets its records, and a check-out is a record without a value."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, TopicPartition

from demo.activity import PATIENTS, TOPICS, Activity
from demo.activity_service import run
from demo.heartbeats.producer import ReplayProducer


@pytest.mark.broker
def test_should_send_the_activity_of_some_seconds(broker, create_topic, unique):
    topics = {topic: create_topic(unique(topic), 1) for topic in TOPICS}
    client = {"bootstrap.servers": broker.bootstrap}
    producers = {topic: ReplayProducer(name, client, 15.0) for topic, name in topics.items()}
    stop = threading.Event()
    # Somebody checks out in each span of 20 s.
    times_ms = iter([1_700_000_000_000, 1_700_000_025_000])

    def clock():
        at_ms = next(times_ms, None)
        if at_ms is None:
            stop.set()
        return at_ms or 1_700_000_025_000

    sent = run(Activity(40), producers, stop, clock)
    consumer = Consumer({**client, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(name, 0, 0) for name in topics.values()])
        found = []
        while len(found) < sent:
            more = consumer.consume(sent, 30.0)
            assert more, f"{len(found)} of {sent} records arrived"
            found += [(message.topic(), message.key(), message.value()) for message in more]
    finally:
        consumer.close()
    assert set(Counter(topic for topic, _, _ in found)) == set(topics.values())
    out = [key for topic, key, value in found if value is None]
    assert out
    assert {topic for topic, _, value in found if value is None} == {topics[PATIENTS]}
