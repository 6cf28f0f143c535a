"""Requests that no controller answers: how often they are repeated, and how much time each attempt gets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.attempts import ask_controller, attempt_s, find_controller


class Admin:
    """An admin client whose requests to the controller end with these errors, one after the other; then they succeed."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.seconds: list[float] = []
        self.refreshed = 0

    def list_topics(self, timeout: float) -> None:
        self.refreshed += 1

    def ask(self, seconds: float) -> str:
        self.seconds.append(seconds)
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return "answer"

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[str]]:
        answer: Future[str] = Future()
        try:
            answer.set_result(self.ask(request_timeout))
        except KafkaException as error:
            answer.set_exception(error)
        return {"__consumer_offsets": answer}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only advances while the code sleeps, or by as much as a test says."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    # Of these modules alone, as other threads of this process use the clock, too.
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tidemark.kafka.attempts.time", clock)
    slept = SimpleNamespace(sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("tenacity.nap.time", slept)
    return now


def test_should_ask_again_with_fresh_metadata_and_more_time():
    admin = Admin(KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
    assert ask_controller(admin, 60.0, admin.ask) == "answer"
    assert admin.seconds[:2] == [12.0, 24.0]
    # Only the pauses took time here.
    assert admin.seconds[2] == 48.0
    assert admin.refreshed == 2


def test_should_not_repeat_what_was_answered():
    admin = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        ask_controller(admin, 60.0, admin.ask)
    assert (len(admin.seconds), admin.refreshed) == (1, 0)


def test_should_give_up_in_time_and_say_that_nothing_was_changed(clock):
    admin = Admin(*[KafkaError._TIMED_OUT] * 1000)
    with pytest.raises(OutcomeUnknown, match="no broker answers as the controller within 1 s, and nothing was changed"):
        find_controller(admin, 1.0)
    assert 1 <= clock[0] < 1.2
    assert len(admin.seconds) > 2
    assert all(seconds <= 1 for seconds in admin.seconds)


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_any_answer_should_show_that_there_is_a_controller(code):
    admin = Admin(KafkaError._TIMED_OUT, code)
    find_controller(admin, 60.0)
    assert len(admin.seconds) == 2


@pytest.mark.parametrize(("timeout_s", "first_s"), [(60.0, 12.0), (2.0, 1.0), (0.5, 0.5)])
def test_the_first_attempt_should_get_a_fifth_of_the_time(timeout_s, first_s):
    assert attempt_s(timeout_s) == first_s
