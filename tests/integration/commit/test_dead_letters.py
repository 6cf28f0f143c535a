"""Dead letters fit into their topic, and records that are too large for a topic are found before they are sent."""

from __future__ import annotations

import random

import pytest
from tests.support.dead_letters import LIMIT
from tests.support.truth.topics import read_all

from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.preflight import preflight
from tidemark.kafka.record_sizes import SizeLimits, limit_of, record_bytes, size_limits
from tidemark.kafka.topic_config import dlq_config
from tidemark.kafka.topics import TopicSpec, create_topics, ensure_user_topics
from tidemark.topology.builder import Topology


@pytest.fixture
def plan(settings, admin, unique):
    topology = Topology(unique("app"))
    topology.stream(unique("in"), schema="id STRING", key="id").group_by_key().count(name="n", store="n").to(
        unique("out")
    )
    made = topology.plan()
    ensure_user_topics(made, settings, admin)
    return made


@pytest.mark.broker
def test_should_refuse_a_dead_letter_topic_that_cannot_even_hold_a_reason(plan, settings, admin):
    config = {**dlq_config(), "max.message.bytes": "4000"}
    create_topics(admin, [TopicSpec(f"{plan.application_id}-dlq", 4, config)], settings)
    preflight(plan, settings, admin)
    with pytest.raises(PreflightFailed, match="raise it with `tidemark kafka configs"):
        size_limits(plan, settings, admin)


@pytest.mark.broker
@pytest.mark.parametrize("compression", ["producer", "gzip", "lz4", "zstd", "snappy"])
def test_should_send_every_record_that_fits_and_many_small_ones_at_once(
    plan, settings, admin, create_topic, unique, compression
):
    """One topic accepts more than librdkafka sends by default, the other less than librdkafka puts into a batch."""
    small = create_topic(unique("small"), max_message_bytes=str(LIMIT), compression_type=compression)
    large = create_topic(unique("large"), max_message_bytes="3000000", compression_type=compression)
    limit, largest = (limit_of({"max.message.bytes": n, "compression.type": compression}) for n in (LIMIT, 3_000_000))
    limits = SizeLimits({small: limit, large: largest})
    client = librdkafka_config(settings)
    producer = TransactionalProducer({**client, **limits.producer_config()}, unique("app"), 10_000, 100_000)
    producer.init(60)
    noise = random.Random(1)
    sizes = {large: [largest - record_bytes(b"k", b"")], small: [limit - record_bytes(b"k", b""), *[900] * 200]}
    wanted = {topic: [noise.randbytes(size) for size in found] for topic, found in sizes.items()}
    producer.begin()
    for topic, values in wanted.items():
        producer.send_many(topic, [{"key": b"k", "value": value, "timestamp": 5} for value in values], 0)
    producer.flush()
    producer.commit()
    written = read_all(settings.bootstrap_servers, wanted)
    assert {topic: [row.value for row in rows] for (topic, _), rows in written.items() if rows} == wanted
