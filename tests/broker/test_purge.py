"""Purging repartition topics while leaders move."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark.broker.offsets import EndOffsets
from tidemark.broker.purge import RepartitionPurge
from tidemark.local.processes import wait_until
from tidemark.names import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

_RECORDS = 10


class _Plan:
    """All that purging asks of a plan."""

    def __init__(self, topic: str) -> None:
        self.repartition_topics = {topic: 1}


def test_should_purge_where_the_leader_is_now(cluster, unique):
    topic = unique("purged")
    place = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    placed = {"replica_assignment": [[1, 2, 3]], "config": {"min.insync.replicas": "2"}}
    admin.create_topics([NewTopic(topic, 1, **placed)])[topic].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _ in range(_RECORDS):
        producer.produce(topic, b"1", partition=0)
    assert producer.flush(30) == 0
    now = 0
    purge = RepartitionPurge(_Plan(topic), admin, 1, lambda: now)
    other = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    beginnings = EndOffsets(other, 15.0).beginnings

    def purged_to(offset):
        nonlocal now
        now += 1
        purge.run({place: offset})
        return beginnings([place])[place] == offset - 1

    def leader():
        return other.list_topics(topic, timeout=10).topics[topic].partitions[0].leader

    assert wait_until(lambda: leader() == 1, 30)
    # The client knows the leader from here on.
    assert wait_until(lambda: purged_to(3), 20)
    cluster.kill_node(1)
    try:
        assert wait_until(lambda: leader() in (2, 3), 30)
        # Well before the client looks for leaders by itself, which it does every few minutes.
        assert wait_until(lambda: purged_to(_RECORDS), 60, 0.5)
    finally:
        cluster.start_node(1)


def test_should_ask_once_for_what_was_deleted(cluster, unique):
    topic = unique("purged")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _ in range(2):
        producer.produce(topic, b"1", partition=0)
    assert producer.flush(30) == 0
    now, asked = 0, []

    class Counting:
        list_topics = admin.list_topics

        def delete_records(self, partitions):
            answers = admin.delete_records(partitions)
            asked.extend(answers.values())
            return answers

    purge = RepartitionPurge(_Plan(topic), Counting(), 1, lambda: now)
    for _ in range(3):
        now += 1
        purge.run({TopicPartition(topic, 0): 2})
        asked[-1].result(20)
    assert len(asked) == 1


def test_should_leave_the_end_where_it_is_when_all_brokers_are_killed(cluster, unique):
    topic = unique("purged")
    place = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(20)

    def produce():
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for _ in range(_RECORDS):
            producer.produce(topic, b"1", partition=0)
        assert producer.flush(30) == 0

    def written_high_watermarks():
        files = [cluster.node(node).folder / "data" / "replication-offset-checkpoint" for node in cluster.node_ids]
        return [f"{topic} 0 {_RECORDS}" in file.read_text().splitlines() for file in files]

    produce()
    assert wait_until(lambda: all(written_high_watermarks()), 30)
    # What is written from here on is not in those files when the brokers die.
    produce()
    times = iter((0, 1, 1))
    purge = RepartitionPurge(_Plan(topic), admin, 1, lambda: next(times))
    purge.run({place: 2 * _RECORDS})
    ends = EndOffsets(admin, 15.0)
    assert wait_until(lambda: ends.beginnings([place])[place] >= 2 * _RECORDS - 1, 4, 0.05)
    for node in cluster.node_ids:
        cluster.kill_node(node)
    for node in cluster.node_ids:
        cluster.node(node).launch()
    cluster.wait_ready()
    other = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    assert EndOffsets(other, 30.0).of([place]) == {place: 2 * _RECORDS}
