"""Records fetched by their offsets from a real broker: close together, far apart, between markers, and deleted."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.kafka import records_at as module
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.records_at import records_at
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import headers_of

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def topic(create_topic, unique):
    return create_topic(unique("records"), partitions=2)


def write(settings, topic, count, partition=0, **more):
    producer = Producer(librdkafka_config(settings))
    for number in range(count):
        producer.produce(topic, b"v%d" % number, b"k%d" % number, partition, timestamp=1000 + number, **more)
    assert producer.flush(60) == 0


def read(settings, offsets, stalled_after_s=60.0):
    found = records_at(librdkafka_config(settings), offsets, stalled_after_s)
    return [(m.partition(), m.offset(), m.key(), m.value(), m.timestamp()[1], headers_of(m)) for m in found]


def test_should_read_each_record_unchanged(settings, topic):
    write(settings, topic, 50, headers=[("h", b"1"), ("h", None)])
    write(settings, topic, 5, partition=1)
    wanted = {TopicPartition(topic, 0): [0, 1, 7, 49], TopicPartition(topic, 1): [4]}
    headers = [("h", b"1"), ("h", None)]
    assert read(settings, wanted) == [
        *((0, n, b"k%d" % n, b"v%d" % n, 1000 + n, headers) for n in (0, 1, 7, 49)),
        (1, 4, b"k4", b"v4", 1004, []),
    ]


def test_should_read_records_that_cannot_be_parsed_unchanged(settings, topic):
    bad = [(b"p1", b"{"), (b"\xff", b'{"id": 1}'), (b"p2", b"\x00\xff")]
    producer = Producer(librdkafka_config(settings))
    for key, value in bad:
        producer.produce(topic, value, key, 0, timestamp=7, headers=[("h", b"\xfe")])
    assert producer.flush(60) == 0
    found = read(settings, {TopicPartition(topic, 0): range(len(bad))})
    assert found == [(0, n, key, value, 7, [("h", b"\xfe")]) for n, (key, value) in enumerate(bad)]


def test_should_read_a_record_without_key_or_value(settings, topic):
    producer = Producer(librdkafka_config(settings))
    producer.produce(topic, None, None, 0, timestamp=5)
    assert producer.flush(60) == 0
    assert read(settings, {TopicPartition(topic, 0): [0]}) == [(0, 0, None, None, 5, [])]


@pytest.mark.parametrize("gap", [0, 10, 1_000])
def test_should_skip_the_records_between_them(settings, topic, monkeypatch, gap):
    """Seeks when the distance is large: reading a million records to find two takes seconds."""
    monkeypatch.setattr(module, "_SEEK_RECORDS", gap)
    write(settings, topic, 30_000)
    wanted = [3, 4, 900, 15_000, 15_001, 29_999]
    assert [found[1] for found in read(settings, {TopicPartition(topic, 0): wanted})] == wanted


def test_should_find_records_between_transactions(settings, topic, unique):
    """Transaction markers and aborted records take offsets, too."""
    producer = Producer({**librdkafka_config(settings), "transactional.id": unique("tx")})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"v%d" % number, b"k", 0)
        assert producer.flush(60) == 0
        producer.commit_transaction(60) if number % 2 == 0 else producer.abort_transaction(60)
    found = read(settings, {TopicPartition(topic, 0): [0, 4, 8]})
    assert [value for _, _, _, value, _, _ in found] == [b"v0", b"v2", b"v4"]
    with pytest.raises(OutcomeUnknown, match=r"\[0\] offset 2 has been deleted since it was found to be bad"):
        read(settings, {TopicPartition(topic, 0): [2]})


def test_should_report_a_record_that_is_deleted_or_does_not_arrive(settings, topic, admin):
    write(settings, topic, 10)
    for done in admin.delete_records([ClientPartition(topic, 0, 5)]).values():
        done.result(60)
    with pytest.raises(OutcomeUnknown, match="failed to read records by their offsets"):
        read(settings, {TopicPartition(topic, 0): [4]})
    with pytest.raises(OutcomeUnknown, match="offset 10: nothing arrived for 1 s"):
        read(settings, {TopicPartition(topic, 0): [10]}, stalled_after_s=1.0)
