"""Offsets of a partition that has another leader, or a newer leader epoch, than the client knows."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark.broker.offsets import EndOffsets
from tidemark.local.processes import wait_until
from tidemark.names import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]


@pytest.mark.parametrize("comes_back", [True, False])
def test_should_ask_again_where_the_leader_is_now(cluster, unique, comes_back):
    topic = unique("moved")
    place = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    placed = {"replica_assignment": [[1, 2, 3]], "config": {"min.insync.replicas": "2"}}
    admin.create_topics([NewTopic(topic, 1, **placed)])[topic].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(topic, b"1", partition=0)
    assert producer.flush(30) == 0
    ends = EndOffsets(admin, 15.0)
    assert ends.of([place]) == {place: 1}

    def leader():
        found = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(topic, timeout=10)
        return found.topics[topic].partitions[0].leader

    assert wait_until(lambda: leader() == 1, 30)
    cluster.kill_node(1)
    try:
        assert wait_until(lambda: leader() in (2, 3), 30)
        if comes_back:  # As a replica that leads no more.
            cluster.start_node(1)
        began = time.monotonic()
        assert ends.of([place]) == ends.stable([place]) == {place: 1}
        assert ends.beginnings([place]) == {place: 0}
        # Well before the client looks for leaders by itself, which it does every few minutes.
        assert time.monotonic() - began < 12
    finally:
        if not cluster.node(1).is_alive():
            cluster.start_node(1)
