"""Events on a real broker, and without one."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.events import state_event
from tests.support.truth.topics import read_all

from tidemark.events.event import Event
from tidemark.events.topic import EventTopic
from tidemark.kafka.clients import librdkafka_config

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.mark.broker
@pytest.mark.parametrize("partitions", [1, 3])
def test_should_write_every_event_of_an_instance_to_the_topic_in_order(settings, create_topic, unique, partitions):
    topic = create_topic(unique("app-events"), partitions)
    writers = [EventTopic(librdkafka_config(settings), topic) for _ in range(2)]
    summary = {n: [state_event("RUNNING", instance=n, time_ms=at) for at in range(500)] for n in range(2)}

    def write(number):
        for event in summary[number]:
            writers[number].publish(event)
        writers[number].close(60)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, summary))
    assert [writer.undelivered for writer in writers] == [0, 0]
    found = {n: [] for n in summary}
    for rows in read_all(settings.bootstrap_servers, [topic]).values():
        for row in sorted(rows, key=lambda row: row.offset):
            event = Event.from_json(row.value)
            assert row.key == str(event.instance).encode()
            found[event.instance].append(event)
    assert found == summary


def test_should_log_one_warning_and_lose_no_time_when_the_broker_is_away(caplog):
    topic = EventTopic(NOBODY, "app-events", max_queued_events=20, delivery_timeout_ms=2000)
    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        for at in range(50):
            topic.publish(state_event("RUNNING", time_ms=at))
        assert time.monotonic() - started < 30
        assert caplog.text.count("events are dropped") == 1
        assert "Queue full" in caplog.text
        topic.close(60)
    assert caplog.text.count("events are dropped") == 1
    assert "50 events were not written" in caplog.text


def test_should_not_wait_longer_than_allowed_when_closing():
    topic = EventTopic(NOBODY, "app-events", delivery_timeout_ms=60_000)
    topic.publish(state_event("RUNNING"))
    started = time.monotonic()
    topic.close(0.2)
    assert time.monotonic() - started < 30
    assert topic.undelivered == 1
