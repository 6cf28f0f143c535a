"""Requests of a transaction that reach the broker during the next one, from the plain client and from Tidemark's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.system.chaos.proxy import ADD_PARTITIONS, END_TXN, OFFSET_COMMIT, PRODUCE, Hold

from tidemark.commit.producer import TransactionalProducer
from tidemark.devstack.ports import LOOPBACK
from tidemark.processes import wait_until

pytestmark = pytest.mark.broker
NO_ERROR, INVALID_PRODUCER_EPOCH = b"\0\0", b"\0\x2f"
TRANSACTION_MS, WAIT_S = 120_000, 60
"""A transaction is open while a consumer joins its group and reads, which takes seconds on a busy machine."""


def visible(bootstrap, topic):
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "looks", "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
    })  # fmt: skip
    consumer.subscribe([topic])
    found = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error():
            break
        found.append(message.value())
    consumer.close()
    return found


@pytest.fixture
def topic(proxied_broker, unique):
    broker, _ = proxied_broker
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(unique("late"), 1, 1)])[unique("late")].result(WAIT_S)
    return unique("late")


@pytest.fixture
def producer(proxied_broker, unique):
    _, proxy = proxied_broker
    made = TransactionalProducer({"bootstrap.servers": f"{LOOPBACK}:{proxy.port}"}, unique("id"), TRANSACTION_MS, 1000)
    made.init(WAIT_S)
    return made


def send(producer, topic, value):
    producer.begin()
    producer.send_many(topic, [{"key": b"k", "value": value}])
    producer.flush()


def test_should_complete_the_next_transaction_of_a_plain_client_when_a_commit_arrives_late(
    proxied_broker, topic, unique
):
    """Shows why our producer needs more than the plain client does."""
    broker, proxy = proxied_broker
    bare = Producer({"bootstrap.servers": f"{LOOPBACK}:{proxy.port}", "transactional.id": unique("bare")})
    bare.init_transactions(WAIT_S)
    bare.begin_transaction()
    bare.produce(topic, b"first")
    proxy.hold = Hold(unique("bare"), END_TXN, PRODUCE)
    bare.commit_transaction(WAIT_S)
    bare.begin_transaction()
    bare.produce(topic, b"second")
    bare.flush(WAIT_S)
    assert wait_until(lambda: proxy.hold.replies, WAIT_S)
    assert proxy.hold.replies == [NO_ERROR]
    # The broker answers before it has written to the partition that the transaction is complete.
    assert wait_until(lambda: visible(broker.bootstrap, topic) == [b"first", b"second"], WAIT_S)


@pytest.mark.parametrize("commits", [True, False])
def test_should_not_end_the_next_transaction_when_an_end_arrives_late(proxied_broker, producer, topic, commits):
    broker, proxy = proxied_broker
    send(producer, topic, b"first")
    proxy.hold = Hold(producer.name, END_TXN, ADD_PARTITIONS)
    producer.commit() if commits else producer.abort()
    first = [b"first"] if commits else []
    send(producer, topic, b"second")
    assert wait_until(lambda: proxy.hold.replies, WAIT_S)
    assert proxy.hold.replies == [INVALID_PRODUCER_EPOCH]
    assert visible(broker.bootstrap, topic) == first
    producer.send_many(topic, [{"key": b"k", "value": b"third"}])
    producer.flush()
    producer.commit()
    assert wait_until(lambda: visible(broker.bootstrap, topic) == [*first, b"second", b"third"], WAIT_S)


def test_should_not_overwrite_newer_offsets_when_offsets_arrive_late(proxied_broker, producer, topic, unique):
    broker, proxy = proxied_broker
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": unique("group")})
    consumer.subscribe([topic])
    assert wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment() != [], WAIT_S)
    group = SimpleNamespace(opaque=consumer.consumer_group_metadata())

    def commit(offset):
        send(producer, topic, b"any")
        producer.send_offsets([ClientPartition(topic, 0, offset)], group)

    commit(10)
    producer.commit()
    proxy.hold = Hold(producer.name, OFFSET_COMMIT, OFFSET_COMMIT)
    commit(20)
    producer.commit()
    commit(30)
    assert wait_until(lambda: proxy.hold.replies, WAIT_S)
    producer.commit()
    assert wait_until(lambda: consumer.committed([ClientPartition(topic, 0)], WAIT_S)[0].offset == 30, WAIT_S)
    consumer.close()
