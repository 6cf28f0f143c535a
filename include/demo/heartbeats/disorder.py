"""Disorder in a replay: beats that arrive out of order, beats that arrive too late, records that are bad."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from demo.heartbeats.beats import Ints
from demo.heartbeats.chance import uniform
from demo.heartbeats.patients import Events, Patients
from tidemark.errors import InvalidSettings

OUT_OF_ORDER_MS = (100, 4_000)
"""The smallest and largest delay of a beat that arrives out of order. It stays within a grace of 5 s."""

LATE_MS = (70_000, 130_000)
"""The smallest and largest delay of a late beat. Its window of 60 s and a grace of 5 s are always over."""

_LATENESS, _DELAY, _BADNESS, _KIND = 2, 3, 4, 5
"""Numbers of the independent draws for an event."""


class Bad(IntEnum):
    """The kind of fault of a bad record. The schema accepts none of them."""

    UNPARSABLE = 0
    WRONG_TYPE = 1
    NO_KEY = 2
    NULL_TIME = 3
    NEGATIVE_TIME = 4
    YEAR_2099 = 5
    OTHER_KEY = 6


SOUND = -1
"""Instead of a `Bad`: the record is good."""


@dataclass(frozen=True)
class Disorder:
    """Shares of all events, each between 0 and 1. Raises `InvalidSettings` for other values."""

    seed: int = 0
    late: float = 0.0
    out_of_order: float = 0.0
    bad: float = 0.0

    def __post_init__(self) -> None:
        for name in ("late", "out_of_order", "bad"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise InvalidSettings(f"a share of {share} for {name.replace('_', '-')}: give one between 0 and 1")
        if self.late + self.out_of_order > 1:
            raise InvalidSettings("the shares of late and out-of-order events are more than 1 together: lower one")

    def delay_ms(self, events: Events) -> Ints:
        """Return how long after its beat each event arrives; 0 for most."""
        lateness = uniform(self.seed, _LATENESS, events.patient, events.number)
        spread = uniform(self.seed, _DELAY, events.patient, events.number)
        late = lateness < self.late
        shuffled = ~late & (lateness < self.late + self.out_of_order)
        delay = np.zeros(len(events), dtype=np.int64)
        for chosen, (least, most) in ((late, LATE_MS), (shuffled, OUT_OF_ORDER_MS)):
            delay[chosen] = least + (spread[chosen] * (most - least)).astype(np.int64)
        return delay

    def badness(self, events: Events) -> Ints:
        """Return a `Bad`, or `SOUND`, for each event."""
        drawn = uniform(self.seed, _BADNESS, events.patient, events.number) < self.bad
        kind = (uniform(self.seed, _KIND, events.patient, events.number) * len(Bad)).astype(np.int64)
        return np.where(drawn, kind, SOUND)


class Timeline:
    """The events of patients in the order in which they arrive, from `start_ms` of event time on."""

    def __init__(self, patients: Patients, disorder: Disorder, start_ms: int) -> None:
        self._patients = patients
        self._disorder = disorder
        self._next_ms = start_ms
        self._waiting: Events | None = None
        self._waiting_ms: Ints = np.zeros(0, dtype=np.int64)

    def until(self, end_ms: int) -> Events:
        """Return the events that arrive between the last call's end and `end_ms`. An event never arrives before its beat."""
        fresh = self._patients.between(self._next_ms, end_ms)
        self._next_ms = max(self._next_ms, end_ms)
        events = fresh if self._waiting is None else Events.join([self._waiting, fresh])
        arrival_ms = np.concatenate([self._waiting_ms, fresh.beat_ms + self._disorder.delay_ms(fresh)])
        here = arrival_ms < end_ms
        self._waiting, self._waiting_ms = events.take(~here), arrival_ms[~here]
        arrived = events.take(here)
        return arrived.take(np.lexsort((arrived.number, arrived.patient, arrival_ms[here])))
