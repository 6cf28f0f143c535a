"""The rate of a replay, and a replay into a real topic."""

from __future__ import annotations

import pytest
from tests.support.truth.topics import read_all

from demo.heartbeats.disorder import Disorder
from demo.heartbeats.producer import ReplayProducer
from demo.heartbeats.replay import Replay, ReplayOptions
from tidemark.errors import OutcomeUnknown, PreflightFailed


@pytest.mark.broker
def test_should_deliver_every_record_once_to_the_partition_that_java_clients_choose(broker, create_topic, unique):
    topic = create_topic(unique("pulse"), 4)
    producer = ReplayProducer(topic, {"bootstrap.servers": broker.bootstrap}, 15.0)
    options = ReplayOptions(topic=topic, patients=40, events=5_000, disorder=Disorder(seed=1, bad=0.02))
    assert Replay(options, producer).run() == 5_000
    rows = [row for part in read_all(broker.bootstrap, [topic]).values() for row in part]
    assert len(rows) == len({(row.partition, row.offset) for row in rows}) == 5_000
    homes: dict[bytes, set[int]] = {}
    for row in rows:
        if row.key is not None:
            homes.setdefault(row.key, set()).add(row.partition)
    # Some bad records are under keys that are no patient's.
    assert {key for key in homes if key.startswith(b"p")} == {b"p%04d" % number for number in range(1, 41)}
    # What kafka-clients computes: Utils.toPositive(Utils.murmur2(key)) % 4.
    assert {key: home for key, home in homes.items() if key in JAVA_PARTITIONS} == JAVA_PARTITIONS


JAVA_PARTITIONS = {b"p0001": {0}, b"p0002": {1}, b"p0003": {3}, b"p0004": {2}, b"p0005": {2}, b"p0007": {1}}


@pytest.mark.broker
def test_should_give_one_clear_error_when_a_topic_or_the_broker_is_missing(broker, unique):
    with pytest.raises(PreflightFailed, match="does not exist"):
        ReplayProducer(unique("nowhere"), {"bootstrap.servers": broker.bootstrap}, 15.0)
    with pytest.raises(PreflightFailed, match="no Kafka broker"):
        ReplayProducer("any", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, 1.0)


@pytest.mark.broker
def test_should_report_an_error_when_records_cannot_be_delivered(broker, create_topic, unique):
    topic = create_topic(unique("small"), 1, max_message_bytes="100")
    producer = ReplayProducer(topic, {"bootstrap.servers": broker.bootstrap}, 15.0)
    with pytest.raises(OutcomeUnknown, match="not delivered"):
        producer.send([(b"k", bytes(range(256)) * 40)])
        producer.flush()
