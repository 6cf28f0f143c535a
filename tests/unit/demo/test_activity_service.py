"""The service sends each second once, when it is over, to the topic of each record."""

from __future__ import annotations

import threading

from demo.activity import TOPICS, Activity
from demo.activity_service import run

AT_S = 1_700_000_000


class Sent:
    def __init__(self):
        self.records, self.is_flushed = [], False

    def send(self, records):
        self.records += records

    def flush(self):
        self.is_flushed = True


class Clock:
    """Shows these times, in seconds after `AT_S`, one at each look; then the service is asked to stop."""

    def __init__(self, *times_s):
        self.times_ms = [int((AT_S + time_s) * 1000) for time_s in times_s]
        self.stop = threading.Event()
        self.wait = self.stop.wait
        self.stop.wait = lambda _timeout_s: None

    def __call__(self):
        if len(self.times_ms) == 1:
            self.stop.set()
            return self.times_ms[0]
        return self.times_ms.pop(0)


def sent_by(*times_s):
    producers = {topic: Sent() for topic in TOPICS}
    clock = Clock(*times_s)
    count = run(Activity(40), producers, clock.stop, clock)
    assert all(producer.is_flushed for producer in producers.values())
    assert sum(len(producer.records) for producer in producers.values()) == count
    return producers


def expected(*at_s):
    activity = Activity(40)
    records = [*activity.admissions(), *(r for second in at_s for r in activity.second(AT_S + second))]
    found = {topic: [] for topic in TOPICS}
    for record in records:
        found[record.topic].append((record.key.encode(), None if record.value is None else record.value.encode()))
    return found


def values(producers):
    return {topic: producer.records for topic, producer in producers.items()}


def test_should_send_each_second_once_when_it_is_over():
    # First look: where to begin. Then looks within a second, after it, and after three at once.
    assert values(sent_by(0.0, 0.5, 0.6, 1.0, 1.1, 4.2, 4.3, 4.4)) == expected(0, 1, 2, 3)


def test_a_service_that_was_stopped_should_not_send_what_is_long_over():
    found = sent_by(0.0, 1000.0, 1000.1, 1000.2)
    assert values(found) == expected(*range(940, 1000))


def test_a_record_without_a_value_should_stay_one():
    # Somebody checks out in each span of 20 s.
    found = sent_by(0.0, 30.0, 30.1, 30.2)
    assert any(value is None for _, value in found["patients"].records)
