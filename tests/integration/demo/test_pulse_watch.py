"""The demo's sums and tables, and how it reads a real broker."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.overview import write_run_file

from demo.patient_alert import PatientAlert
from demo.pulse_watch import PulseWatch, Snapshot
from tidemark.cli.demo import is_counting
from tidemark.processes import wait_until


@pytest.mark.broker
def test_should_read_counts_lag_and_instances(broker, create_topic, unique, tmp_path):
    application, source, sink = unique("app"), create_topic(unique("in"), 2), create_topic(unique("out"), 1)
    alerts = create_topic(unique("alerts"), 1)
    now_ms = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def count(patient: str, pulses: int) -> None:
        value = {"patient_id": patient, "window_start": now_ms, "window_end": now_ms + 60_000, "pulses": pulses}
        producer.produce(sink, json.dumps(value).encode(), patient.encode())
        producer.flush()

    for n in range(10):
        producer.produce(source, b"beat", str(n).encode(), partition=n % 2)
    count("p1", 1)
    committing = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": application})
    committing.commit(offsets=[TopicPartition(source, 0, 3)], asynchronous=False)
    committing.close()
    write_run_file(tmp_path, application, records_per_second=7.0, last_commit_ms=now_ms)

    client = {"bootstrap.servers": broker.bootstrap}
    # Began a moment later than the first count, which is shown and does not prove anything.
    watch = PulseWatch(client, application, (source, sink, alerts), tmp_path, 5_000, now_ms + 60_000)
    try:
        shown = followed_until(watch, now_ms, lambda snapshot: snapshot.newest)
        assert not is_counting(shown)
    finally:
        watch.close()
    watch = PulseWatch(client, application, (source, sink, alerts), tmp_path, 5_000, now_ms)
    try:
        count("p1", 2)
        count("p2", 4)
        alert = {"patient_id": "p2", "ward": "surgery", "window_start": now_ms, "pulses": 104, "celsius": 38.5}
        producer.produce(alerts, json.dumps(alert).encode(), b"p2")
        producer.flush()
        snapshot = followed_until(
            watch, now_ms + 1_000, lambda snapshot: (snapshot.fresh_updates, snapshot.alerts, snapshot.lag) == (3, 1, 7)
        )
    finally:
        watch.close()
    newest = (("p1", now_ms, 2), ("p2", now_ms, 4))
    alerted = (PatientAlert("p2", "surgery", now_ms, 104, 38.5),)
    assert snapshot == Snapshot("RUNNING", 2, 2, 6, 7.0, 7, 1.0, 3, newest, 1, alerted)
    assert is_counting(snapshot)


def followed_until(watch, now_ms, condition):
    """Follow until a snapshot meets the condition."""
    shown = []

    def is_met():
        watch.follow(0.5)
        shown.append(watch.snapshot(now_ms))
        return condition(shown[-1])

    assert wait_until(is_met, 60), shown[-1]
    return shown[-1]
