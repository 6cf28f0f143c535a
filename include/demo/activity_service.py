"""The service that sends the demo's activity second by second: `python -m demo.activity_service PATIENTS`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from demo.activity import TOPICS, Activity, TopicRecord
from demo.heartbeats.producer import ReplayProducer
from tidemark.clock import wall_clock_ms
from tidemark.kafka.clients import librdkafka_config
from tidemark.processes import stop_on_signals
from tidemark.settings import Settings

_MOST_LATE_S = 60
"""A service that was stopped, such as with the machine, does not send what happened longer ago."""


class Sends(Protocol):
    """The part of a producer that the service needs."""

    def send(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Queue records."""

    def flush(self) -> None:
        """Block until they are delivered."""


def run(
    activity: Activity,
    producers: Mapping[str, Sends],
    stop: threading.Event,
    clock: Callable[[], int] = wall_clock_ms,
) -> int:
    """Check every patient in, then send each second when it is over, until `stop` is set. Returns the records sent.

    Blocks. Raises `OutcomeUnknown` if records could not be delivered.
    """
    sent = _send(activity.admissions(), producers)
    next_s = clock() // 1000
    while not stop.is_set():
        now_s = clock() // 1000
        next_s = max(next_s, now_s - _MOST_LATE_S)
        while next_s < now_s:
            sent += _send(activity.second(next_s), producers)
            next_s += 1
        stop.wait(max(0.01, (next_s + 1) - clock() / 1000))
    for producer in producers.values():
        producer.flush()
    return sent


def _send(records: Sequence[TopicRecord], producers: Mapping[str, Sends]) -> int:
    for topic, producer in producers.items():
        producer.send(
            [
                (record.key.encode(), None if record.value is None else record.value.encode())
                for record in records
                if record.topic == topic
            ]
        )
    return len(records)


def main(patients: int) -> None:
    """Send until SIGTERM."""
    settings, stop = Settings.load(), threading.Event()
    stop_on_signals(stop)
    timeout_s = settings.broker_timeout_ms / 1000
    client = librdkafka_config(settings)
    run(Activity(patients), {topic: ReplayProducer(topic, client, timeout_s) for topic in TOPICS}, stop)


if __name__ == "__main__":
    main(int(sys.argv[1]))
