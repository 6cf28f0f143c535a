"""Real brokers: they start, keep their data, and go away."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import CreateTopic

from tidemark.devstack import ports
from tidemark.devstack.broker import EmbeddedBroker, EmbeddedCluster, answers
from tidemark.errors import PreflightFailed
from tidemark.processes import wait_until

pytestmark = pytest.mark.broker


def _produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "topic.metadata.propagation.max.ms": 3000})
    failures: list[object] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    if failures:
        raise KafkaException(failures[0])


def test_should_refuse_a_topic_that_nobody_created(broker: EmbeddedBroker, unique: Callable[[str], str]) -> None:
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        _produce(broker.bootstrap, unique("misspelt"))


def test_should_commit_a_transaction_on_a_single_broker(
    broker: EmbeddedBroker, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = create_topic(unique("sink"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("app"), "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"v")
    producer.commit_transaction(60)


def test_should_keep_address_and_data_when_a_broker_is_killed(
    mark: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    with EmbeddedBroker(tmp_path / "broker", kafka_jars) as broker:
        address = broker.bootstrap
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(60)
        # The topic is there before the broker names it, which may take longer than a producer waits.
        assert wait_until(lambda: "kept" in admin.list_topics(timeout=60).topics, 60)
        _produce(address, "kept")
        (broker.folder / "tmp" / "left").touch()
        broker.kill()
        assert not answers(address)
        broker.start()
        assert broker.bootstrap == address
        assert not (broker.folder / "tmp" / "left").exists()
        assert "kept" in admin.list_topics(timeout=60).topics
    assert not broker.is_alive()
    assert ports.is_free(broker.node.port)


def test_should_say_why_and_leave_nothing_when_a_broker_cannot_start(
    mark: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", kafka_jars, overrides={"num.io.threads": "none"})
    with pytest.raises(PreflightFailed, match=r"num\.io\.threads"):
        broker.start()
    assert not broker.is_alive()


def test_should_name_the_node_that_ended(mark: str, kafka_jars: list[Path], tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path, kafka_jars)
    with (
        socket.create_server((ports.LOOPBACK, cluster.node(3).node.port)),
        pytest.raises(PreflightFailed, match=r"node-3 .*Address already in use"),
        cluster,
    ):
        pass
    assert not any(cluster.node(node).is_alive() for node in cluster.node_ids)


def test_should_continue_without_one_node_of_a_cluster(cluster: EmbeddedCluster, unique: Callable[[str], str]) -> None:
    topic = unique("replicated")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)

    def is_known_to(node: int) -> bool:
        asked = AdminClient({"bootstrap.servers": cluster.node(node).bootstrap, "log_level": 0})
        return topic in asked.list_topics(timeout=60).topics

    # A client that asks a broker which does not know it for three seconds takes it for one that does not exist.
    assert wait_until(lambda: is_known_to(1) and is_known_to(3), 60)
    cluster.kill_node(2)
    try:
        _produce(cluster.bootstrap, topic)
    finally:
        cluster.start_node(2)
    assert wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 3, 60)
