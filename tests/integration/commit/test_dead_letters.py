"""Dead letters fit into their topic, and what a topic refuses for its size is known before it is sent (rule 28)."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.broker.clients import librdkafka_config
from tidemark.broker.preflight import preflight
from tidemark.broker.sizes import SizeLimits, limit_of, record_bytes, size_limits
from tidemark.broker.topics import TopicSpec, create_topics, ensure_user_topics
from tidemark.changelog.policy import dlq_config
from tidemark.commit.dead_letters import dead_letter_record
from tidemark.commit.transaction import TransactionalProducer
from tidemark.errors import PreflightFailed
from tidemark.tasks.update import DeadLetter
from tidemark.topology.builder import Topology

LIMIT = 20_000


def a_letter(value=b"{", key=b"k", headers=(("own", b"h"),), **more):
    return DeadLetter("unparsable", "in", 3, 17, key, value, headers, **more)


def sent(letter, limit=LIMIT):
    key, value, headers = dead_letter_record(letter, limit)
    assert record_bytes(key, value, headers) <= limit
    return key, value, dict(headers)


TOLD = {"tidemark.reason": b"unparsable", "tidemark.topic": b"in", "tidemark.partition": b"3", "tidemark.offset": b"17"}


def test_should_keep_a_letter_that_fits_as_it_was_read():
    assert sent(a_letter(timestamp_ms=5)) == (b"k", b"{", {"own": b"h", **TOLD, "tidemark.timestamp": b"5"})
    assert sent(a_letter(None))[1] is None


@pytest.mark.parametrize("more", [-1, 0, 1, 1_000_000])
def test_should_shorten_the_value_where_the_topic_takes_no_more(more):
    whole = LIMIT - record_bytes(b"k", b"", dead_letter_record(a_letter(b""), LIMIT)[2])
    value = bytes(range(256)) * 5000
    value = value[: whole + more]
    key, kept, headers = sent(a_letter(value))
    assert (key, headers["own"]) == (b"k", b"h")
    assert value.startswith(kept)
    if more <= 0:
        assert (kept, headers.keys() & {"tidemark.shortened", "tidemark.value.bytes"}) == (value, set())
    else:
        assert len(kept) > LIMIT * 0.9
        assert (headers["tidemark.shortened"], headers["tidemark.value.bytes"]) == (b"value", b"%d" % len(value))


def test_should_leave_the_records_own_headers_out_where_they_alone_are_too_much():
    key, value, headers = sent(a_letter(b"v" * 9, headers=(("own", b"h" * LIMIT), ("more", None))))
    assert (key, value, "own" in headers) == (b"k", b"v" * 9, False)
    assert headers["tidemark.shortened"] == b"value,headers"
    assert (headers["tidemark.headers.count"], headers["tidemark.value.bytes"]) == (b"2", b"9")


def test_should_shorten_the_key_at_last():
    key, value, headers = sent(a_letter(b"v" * 9, key=b"k" * LIMIT))
    assert (key, value) == (b"k" * 1024, b"v" * 9)
    assert (headers["tidemark.key.bytes"], headers["tidemark.shortened"]) == (b"%d" % LIMIT, b"value,headers,key")


def test_should_find_the_records_that_a_topic_refuses():
    limits = SizeLimits({"small": 1000})
    fits = 1000 - record_bytes(b"key", b"")
    messages = [{"key": b"key", "value": b"v" * size} for size in (fits - 1, fits, fits + 1)] + [
        {"key": None, "value": None}
    ]
    assert limits.oversized("small", messages) == [2]
    assert limits.oversized("other", messages) == []
    assert limits.oversized("small", [{"key": b"key", "value": b"", "headers": [("h", b"x" * fits)]}]) == [0]


def test_should_leave_room_where_a_topic_compresses_by_itself():
    assert limit_of({"max.message.bytes": "256000", "compression.type": "producer"}) == 256_000
    assert limit_of({"max.message.bytes": "256000", "compression.type": "gzip"}) == 255_000


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
def test_should_refuse_a_topic_of_dead_letters_that_takes_not_even_a_reason(plan, settings, admin):
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
    """Of two topics, one takes more than librdkafka sends by itself, the other less than it puts into a batch."""
    small = create_topic(unique("small"), max_message_bytes=str(LIMIT), compression_type=compression)
    large = create_topic(unique("large"), max_message_bytes="3000000", compression_type=compression)
    limit, largest = (limit_of({"max.message.bytes": n, "compression.type": compression}) for n in (LIMIT, 3_000_000))
    limits = SizeLimits({small: limit, large: largest})
    client = librdkafka_config(settings)
    producer = TransactionalProducer({**client, **limits.producer_config()}, unique("app"), 10_000, 100_000)
    producer.init(30)
    noise = random.Random(1)
    sizes = {large: [largest - record_bytes(b"k", b"")], small: [limit - record_bytes(b"k", b""), *[900] * 200]}
    wanted = {topic: [noise.randbytes(size) for size in found] for topic, found in sizes.items()}
    producer.begin()
    for topic, values in wanted.items():
        producer.send_many(topic, [{"key": b"k", "value": value, "timestamp": 5} for value in values], 0)
    producer.flush()
    producer.commit()
    assert {topic: values_of(client, topic, len(values)) for topic, values in wanted.items()} == wanted


def values_of(client, topic, count):
    reader = Consumer({**client, "group.id": "r", "isolation.level": "read_committed"})
    reader.assign([ClientPartition(topic, 0, 0)])
    found = [message.value() for message in (reader.poll(10) for _ in range(count)) if message is not None]
    reader.close()
    return found
