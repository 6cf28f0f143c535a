"""A topic whose leader is known, for tests that kill it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark.devstack.broker import EmbeddedCluster
from tidemark.names import TopicPartition, dlq_topic
from tidemark.processes import wait_until


@dataclass
class ReplicatedTopic:
    """A topic of one partition with a replica on each of three nodes."""

    cluster: EmbeddedCluster
    name: str

    @property
    def place(self) -> TopicPartition:
        """Its partition."""
        return TopicPartition(self.name, 0)

    def client(self) -> AdminClient:
        """A client that knows nothing of earlier leaders."""
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def produce(self, records: int) -> None:
        """Write records and wait for their acknowledgement."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for _ in range(records):
            producer.produce(self.name, b"1", partition=0)
        assert producer.flush(60) == 0

    def await_leader(self, *nodes: int) -> None:
        """Wait until one of these nodes leads."""

        def leader() -> int:
            return self.client().list_topics(self.name, timeout=60).topics[self.name].partitions[0].leader

        assert wait_until(lambda: leader() in nodes, 90)


@pytest.fixture
def replicated(cluster, unique) -> Iterator[ReplicatedTopic]:
    """Node 1 is the preferred leader. All nodes run again when the test has ended. It may be used as dead letters, too."""
    topic = ReplicatedTopic(cluster, dlq_topic(unique("replicated")))
    placed = {"replica_assignment": [[1, 2, 3]], "config": {"min.insync.replicas": "2"}}
    admin = topic.client()
    admin.create_topics([NewTopic(topic.name, 1, **placed)])[topic.name].result(60)
    yield topic
    cluster.start()
