"""Generates the input of the demo besides heartbeats: check-ins, check-outs and temperatures of patients, purchases, clicks.

Everything is a pure function of the seed and the second, so a service that was stopped continues where it is in time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from demo.heartbeats.records import patient_ids

PATIENTS, TEMPERATURES, PURCHASES, CLICKS = "patients", "temperature-events", "purchases", "clicks"
TOPICS = (PATIENTS, TEMPERATURES, PURCHASES, CLICKS)
MEASURED_EVERY_S = 30
"""Every patient's temperature is measured this often, so a measurement is near each minute with a high pulse."""
FEVERISH = 5
"""One patient of so many has a fever."""
CHECK_OUT_EVERY_S, AWAY_S = 20, 60
"""So often a patient leaves, who comes back after this time."""
_PURCHASES_PER_S, _CLICKS_PER_S = 10, 20
_CUSTOMERS, _USERS = 200, 300
_WARDS = ("cardiology", "surgery", "intensive care")
_ITEMS = ("bread", "coffee", "apples", "cheese", "soap")
_PAGES = ("/", "/search", "/news", "/cart", "/help", "/about")
_STRIDE = 1_000_003
"""A prime above every number of patients, so that all of them leave once before one leaves again."""


@dataclass(frozen=True)
class TopicRecord:
    """A record for a topic. Without a value it deletes its key from a table."""

    topic: str
    key: str
    value: str | None


class Activity:
    """The events of so many patients, and of customers and users."""

    def __init__(self, patients: int, seed: int = 0) -> None:
        self._patients = patient_ids(patients)
        self._seed = seed

    def admissions(self) -> list[TopicRecord]:
        """Return the record that checks each patient in."""
        return [self._check_in(number) for number in range(len(self._patients))]

    def second(self, at_s: int) -> list[TopicRecord]:
        """Return the events of one second; `at_s` is in epoch seconds."""
        chance = Random(f"{self._seed}-{at_s}")
        return [
            *self._stays(at_s),
            *self._temperatures(at_s, chance),
            *(self._purchase(at_s, chance) for _ in range(_PURCHASES_PER_S)),
            *(self._click(at_s, chance) for _ in range(_CLICKS_PER_S)),
        ]

    def _check_in(self, number: int) -> TopicRecord:
        patient, ward = self._patients[number], _WARDS[number % len(_WARDS)]
        return _record(PATIENTS, patient, patient_id=patient, ward=ward)

    def _stays(self, at_s: int) -> Iterator[TopicRecord]:
        """Yield who comes back and who leaves. The same patient does not leave before he or she is back."""
        away = AWAY_S // CHECK_OUT_EVERY_S
        if at_s % CHECK_OUT_EVERY_S == 0 and len(self._patients) > away:
            turn = at_s // CHECK_OUT_EVERY_S
            yield self._check_in(self._leaving(turn - away))
            yield TopicRecord(PATIENTS, self._patients[self._leaving(turn)], None)

    def _leaving(self, turn: int) -> int:
        return turn * _STRIDE % len(self._patients)

    def _temperatures(self, at_s: int, chance: Random) -> Iterator[TopicRecord]:
        for number in range(-at_s % MEASURED_EVERY_S, len(self._patients), MEASURED_EVERY_S):
            patient = self._patients[number]
            celsius = round((38.6 if number % FEVERISH == 0 else 36.9) + chance.uniform(-0.4, 0.4), 1)
            yield _record(TEMPERATURES, patient, patient_id=patient, measured_ms=at_s * 1000, celsius=celsius)

    def _purchase(self, at_s: int, chance: Random) -> TopicRecord:
        customer = f"c{chance.randrange(_CUSTOMERS):04d}"
        at_ms, cents = at_s * 1000 + chance.randrange(1000), chance.randrange(99, 4999)
        return _record(
            PURCHASES, customer, customer_id=customer, item=chance.choice(_ITEMS), cents=cents, bought_ms=at_ms
        )

    def _click(self, at_s: int, chance: Random) -> TopicRecord:
        user, page = f"u{chance.randrange(_USERS):04d}", _PAGES[int(len(_PAGES) * chance.random() ** 2)]
        return _record(CLICKS, user, user_id=user, page=page, clicked_ms=at_s * 1000 + chance.randrange(1000))


def _record(topic: str, key: str, **value: object) -> TopicRecord:
    return TopicRecord(topic, key, json.dumps(value))
