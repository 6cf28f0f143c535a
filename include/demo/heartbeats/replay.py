"""Replays patients into a topic: how fast, from which event time, until when.

Event time advances with the clock, multiplied by a speed. The broker stamps each record with its own clock, and an event's
time must never be ahead of that: a replay that is faster than the hearts beat starts in the past (`ReplayRate.of`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from demo.heartbeats.disorder import LATE_MS, Disorder, Timeline
from demo.heartbeats.patients import Patients
from demo.heartbeats.producer import ReplayProducer
from demo.heartbeats.recordings import recordings
from demo.heartbeats.records import Encoder, Record
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidSettings

log = logging.getLogger(__name__)

DEFAULT_PATIENTS = 500
_SLICE_S = 0.1
_SLICE_EVENTS = 20_000


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay. `rate` is in events per second of the clock; None replays at the speed of the recordings.

    `events` None replays until stopped; with a number and no rate, the replay is as fast as the broker accepts it.
    """

    topic: str = "pulse-events"
    patients: int | None = None
    rate: float | None = None
    events: int | None = None
    start_ms: int | None = None
    disorder: Disorder = field(default_factory=Disorder)


@dataclass(frozen=True)
class ReplayRate:
    """The number of patients, the first event time, and how much faster than the clock; `speed` None is without limit."""

    patients: int
    start_ms: int
    speed: float | None
    beats_per_second: float

    @classmethod
    def of(cls, options: ReplayOptions, now_ms: int) -> ReplayRate:
        """Fill in what the options leave open. Raises `InvalidSettings` if events would be ahead of the clock."""
        for name, value in (("patients", options.patients), ("rate", options.rate), ("events", options.events)):
            if value is not None and value <= 0:
                raise InvalidSettings(f"{name} is {value}: give a number above 0")
        patients = options.patients or (_enough(options.rate) if options.rate else DEFAULT_PATIENTS)
        natural = _beats_per_second(patients)
        endless = options.events is None
        speed = options.rate / natural if options.rate else (1.0 if endless else None)
        if endless and options.rate and options.rate > natural:
            raise InvalidSettings(
                f"{patients} patients beat {natural:.0f} times a second, so {options.rate:.0f} events/s would run "
                f"ahead of the clock: give --patients {_enough(options.rate)}, or --events for a bounded replay"
            )
        span_ms = 0 if options.events is None else _span_ms(options.events / natural, speed, options.disorder)
        start_ms = now_ms - span_ms if options.start_ms is None else options.start_ms
        if start_ms + span_ms > now_ms:
            raise InvalidSettings(
                f"the replay covers {span_ms / 1000:.0f} s from {start_ms} on and would run ahead of the clock: "
                f"start at {now_ms - span_ms} or earlier"
            )
        return cls(patients, start_ms, speed, natural)


def _beats_per_second(patients: int) -> float:
    return Patients(recordings(), patients, 0).beats_per_second


def _enough(rate: float) -> int:
    """Return the least number of patients that reach this rate."""
    patients = math.ceil(rate / max(recording.beats_per_second for recording in recordings()))
    while _beats_per_second(patients) < rate:
        patients += 1
    return patients


def _span_ms(natural_s: float, speed: float | None, disorder: Disorder) -> int:
    """Return the event time that a bounded replay gains on the clock, with room for delayed events and uneven loops."""
    if speed is not None and speed <= 1:
        return 0
    return int(natural_s * 1000 * 1.1) + 60_000 + (LATE_MS[1] if disorder.late else 0)


class Replay:
    """One replay into one topic. When `stop` is set, `run` ends after the current slice."""

    def __init__(self, options: ReplayOptions, producer: ReplayProducer) -> None:
        self._options = options
        self._producer = producer
        self.stop = threading.Event()
        self.sent = 0

    def run(self, progress: Callable[[int], None] = lambda sent: None) -> int:
        """Send until all events are sent or `stop` is set, then flush; return how many were sent.

        `progress` is called with the number of events sent so far, after each slice. Blocks. Raises `InvalidSettings`,
        `PreflightFailed` if topic or broker is missing, `OutcomeUnknown` if records could not be delivered.
        """
        now_ms = wall_clock_ms()
        pace = ReplayRate.of(self._options, now_ms)
        disorder = self._options.disorder
        patients = Patients(recordings(), pace.patients, disorder.seed)
        timeline, encoder = Timeline(patients, disorder, pace.start_ms), Encoder(patients, disorder)
        log.info("replay begins: topic=%s %s", self._options.topic, pace)
        began = time.monotonic()
        slice_ms = max(1, int(1000 * _SLICE_EVENTS / pace.beats_per_second))
        at_ms = pace.start_ms
        while not self.stop.is_set() and self.sent != self._options.events:
            clock_ms = at_ms + slice_ms
            if pace.speed is not None:
                clock_ms = pace.start_ms + int((time.monotonic() - began) * 1000 * pace.speed)
            due_ms = min(at_ms + slice_ms, clock_ms)
            self._send(encoder.records(timeline.until(due_ms)))
            at_ms = due_ms
            progress(self.sent)
            if pace.speed is not None and due_ms == clock_ms:
                self.stop.wait(_SLICE_S)
        self._producer.flush()
        log.info("replay ends: topic=%s events=%d", self._options.topic, self.sent)
        return self.sent

    def _send(self, records: list[Record]) -> None:
        if self._options.events is not None:
            records = records[: self._options.events - self.sent]
        self._producer.send(records)
        self.sent += len(records)
