"""Outputs with lower acks than state: which client sends them, and what a batch waits for."""

from __future__ import annotations

import time

import pytest
from tests.support.truth.topics import end_offsets, read_all

from tidemark.commit.producer import IdempotentProducer
from tidemark.processes import wait_until
from tidemark.topology.plan import Acks


@pytest.mark.broker
@pytest.mark.parametrize("acks", list(Acks))
def test_should_deliver_every_record_in_order_with_any_acks(broker, create_topic, unique, acks):
    out, changelog = create_topic(unique("out")), create_topic(unique("changelog"))
    client = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    producer = IdempotentProducer(client, "app-0", 20_000, 50, lambda _: None, acks, [out])
    producer.begin()
    sent = [b"%04d" % number for number in range(500)]
    now_ms = int(time.time() * 1000)
    producer.send_many(out, [{"key": b"k", "value": value, "timestamp": now_ms} for value in sent])
    producer.send_many(changelog, [{"key": b"k", "value": value} for value in sent], partition=0)
    producer.flush()
    # Without acks the client takes a record for delivered that it has only sent.
    assert wait_until(lambda: end_offsets(broker.bootstrap, [(out, 0)], "read_committed")[out, 0] == len(sent), 60)
    found = read_all(broker.bootstrap, [out, changelog])
    for topic in (out, changelog):
        assert [row.value for row in found[(topic, 0)]] == sent
