"""Queries to brokers while leaders and coordinators move, and while topics are written."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from tests.support.truth import topics

from tidemark.processes import wait_until


@pytest.mark.broker
def test_should_read_up_to_the_end_at_the_time_of_the_call_when_more_keeps_arriving(
    broker, create_topic, unique, monkeypatch
):
    """The client reports the end of a partition only when nothing has arrived for a while."""
    monkeypatch.setattr(topics, "FETCH_WAIT_MS", 1000)
    name, stop = create_topic(unique("fed"), partitions=1), threading.Event()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(60)

    def feed():
        while not stop.wait(0.1):
            producer.begin_transaction()
            producer.produce(name, b"more")
            producer.commit_transaction(60)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        assert wait_until(lambda: topics.end_offsets(broker.bootstrap, [(name, 0)], "read_committed")[name, 0] > 10, 60)
        ends = topics.end_offsets(broker.bootstrap, [(name, 0)], "read_uncommitted")
        rows = topics.read_all(broker.bootstrap, [name], timeout_s=60)
    finally:
        stop.set()
        thread.join(60)
    assert len(rows[name, 0]) >= ends[name, 0] // 2 - 1
