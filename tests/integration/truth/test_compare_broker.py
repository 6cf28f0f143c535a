"""The comparison on real topics, written by hand as a correct and as a faulty application would write them."""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.truth.compare import Comparison, compare
from tests.support.truth.recompute import PATIENT_MONITORING, Counting, recompute
from tests.support.truth.topics import Unreadable, hidden_ends, read_all

pytestmark = pytest.mark.broker
# Of now: a broker deletes what its timestamps say is older than a week.
START = int(time.time()) // 60 * 60_000
BEAT = START + 45_000


class Application:
    """Topics of one application with a source of one partition: three beats of one patient and a bad record."""

    def __init__(self, bootstrap: str, create_topic: Callable[..., str], unique: Callable[[str], str]) -> None:
        name = unique("app")
        self.rules: Counting = dataclasses.replace(
            PATIENT_MONITORING, application_id=name, source_topic=f"{name}-in", sink_topic=f"{name}-out"
        )
        rules = self.rules
        for topic in (
            rules.source_topic,
            rules.sink_topic,
            rules.changelog_topic,
            rules.dlq_topic,
            rules.commits_topic,
        ):
            create_topic(topic, 1)
        self.bootstrap = bootstrap
        self.producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        self.producer.init_transactions(60)
        plain = Producer({"bootstrap.servers": bootstrap})
        for beat in (BEAT, BEAT + 1, BEAT + 2):
            plain.produce(rules.source_topic, json.dumps({"patient_id": "p1", "beat_ms": beat}).encode(), b"p1")
        plain.produce(rules.source_topic, b"{broken", b"p1")
        plain.flush()

    def count(self, pulses: int) -> None:
        """One output and its changelog record."""
        value = {"patient_id": "p1", "window_start": START, "window_end": START + 60_000, "pulses": pulses}
        self.producer.produce(self.rules.sink_topic, json.dumps(value).encode(), b"p1")
        key = b"p1" + struct.pack(">q", START)
        self.producer.produce(self.rules.changelog_topic, struct.pack("<BBqq", 3, 1, BEAT, pulses), key)

    def commit_record(self, start: int, end: int, bad: int = 0) -> None:
        """What a batch leaves in the commits topic."""
        record = {
            "application_id": self.rules.application_id,
            "task": "0_0",
            "kind": "batch",
            "sources": {self.rules.source_topic: {"0": [start, end]}},
            "stream_times": {"task_ms": 0, "by_store": {"pulse-counts": BEAT + min(end, 3) - 1}},
            "rows": end - start - bad,
            "late_rows": 0,
            "bad_rows": bad,
            "sinks": {self.rules.sink_topic: 1},
            "changelogs": {self.rules.changelog_topic: 1},
        }
        self.producer.produce(self.rules.commits_topic, json.dumps(record).encode(), b"0_0")

    def dead_letter(self) -> None:
        """The bad record's."""
        headers = [("reason", "json"), ("topic", self.rules.source_topic), ("partition", "0"), ("offset", "3")]
        named = [(f"tidemark.{name}", text.encode()) for name, text in headers]
        self.producer.produce(self.rules.dlq_topic, b"{broken", b"p1", headers=named)

    def commit_offset(self, offset: int) -> None:
        """The group's offset."""
        client = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.rules.application_id})
        client.commit(offsets=[TopicPartition(self.rules.source_topic, 0, offset)], asynchronous=False)
        client.close()

    def run(self) -> None:
        """Both batches, as they should be; the second is tried once in vain."""
        self.producer.begin_transaction()
        self.count(2)
        self.commit_record(0, 2)
        self.producer.commit_transaction()
        for attempt in ("abort", "commit"):
            self.producer.begin_transaction()
            self.count(3)
            self.dead_letter()
            self.commit_record(2, 4, bad=1)
            self.producer.flush()
            getattr(self.producer, f"{attempt}_transaction")()
        self.commit_offset(4)

    def verdict(self) -> Comparison:
        return compare(self.bootstrap, recompute(self.bootstrap, self.rules), self.rules)


@pytest.fixture
def application(broker, create_topic, unique) -> Application:
    return Application(broker.bootstrap, create_topic, unique)


def test_should_find_a_correct_application_exact_and_ignore_aborted_records(application: Application):
    application.run()
    found = application.verdict()
    assert found.report() == []
    assert found.exact
    assert (found.dlq, found.expected_dlq) == (1, 1)


def test_should_find_each_fault(application: Application):
    application.run()
    application.producer.begin_transaction()
    application.count(3)
    application.dead_letter()
    application.producer.commit_transaction()
    application.commit_offset(3)
    found = application.verdict()
    assert (found.sink.duplicated, found.changelog.duplicated, found.dead_letters.duplicated) == (1, 1, 1)
    assert [fault for fault in found.faults if "committed offset" in fault]
    assert not found.exact


def test_should_find_an_idle_application_not_exact_but_without_lost_results(application: Application):
    found = application.verdict()
    assert found.faults == [f"4 records of {application.rules.source_topic} are in no batch"]
    assert not found.exact


def test_should_not_read_past_an_open_transaction(application: Application):
    application.run()
    application.producer.begin_transaction()
    application.count(4)
    application.producer.flush()
    rules = application.rules
    assert set(hidden_ends(application.bootstrap, [rules.sink_topic])) == {(rules.sink_topic, 0)}
    with pytest.raises(Unreadable, match="open"):
        read_all(application.bootstrap, [rules.sink_topic], timeout_s=2.0)
    application.producer.abort_transaction()
    assert application.verdict().exact


def test_should_name_a_missing_topic(application: Application):
    with pytest.raises(Unreadable, match="nowhere"):
        read_all(application.bootstrap, ["nowhere"])
