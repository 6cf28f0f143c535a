"""The brokers of tests keep what tests write, however old its timestamps are."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.brokers import brief
from tests.support.truth.topics import beginnings, end_offsets

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.processes import wait_until

OLD_MS = 1_700_000_000_000
EAGER = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "100"}


@pytest.mark.broker
def test_should_keep_old_records_unless_the_topic_says_otherwise(
    mark: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    with brief(EmbeddedBroker(tmp_path / "broker", kafka_jars, overrides=EAGER)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [NewTopic("kept", 1, 1), NewTopic("deleted", 1, 1, config={"retention.ms": "1000"})]
        for created in admin.create_topics(topics).values():
            created.result(60)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        places = [("kept", 0), ("deleted", 0)]
        producer.produce("kept", b"v", timestamp=OLD_MS)
        # Between the deletions of two records written one after the other, retention has looked at each topic.
        for written in (1, 2):
            producer.produce("deleted", b"v", timestamp=OLD_MS)
            assert producer.flush(60) == 0
            assert wait_until(lambda end=written: beginnings(broker.bootstrap, places)["deleted", 0] == end, 60)
        assert beginnings(broker.bootstrap, places)["kept", 0] == 0
        assert end_offsets(broker.bootstrap, places, "read_uncommitted") == {("kept", 0): 1, ("deleted", 0): 2}
