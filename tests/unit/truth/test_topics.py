"""Queries to brokers while leaders and coordinators move, and while topics are written."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.support.truth import topics

PLACE = ("in", 0)


class Moving:
    """A consumer whose first answers are an error."""

    def __init__(self, code: int, failures: int) -> None:
        self._code = code
        self.failures = failures

    def get_watermark_offsets(self, partition, timeout):
        if self.failures:
            self.failures -= 1
            raise KafkaException(KafkaError(self._code))
        return 3, 7

    def poll(self, timeout):
        """Nothing is assigned, so nothing comes."""

    def close(self):
        """There is nothing to close."""


@pytest.mark.parametrize("code", sorted(topics._LEADER_MOVES))
def test_should_retry_for_offsets_while_the_leader_moves(monkeypatch, code):
    monkeypatch.setattr(topics, "_consumer", lambda *_: Moving(code, 2))
    assert topics.end_offsets("", [PLACE], "read_committed") == {PLACE: 7}
    assert topics.beginnings("", [PLACE]) == {PLACE: 3}


@pytest.mark.parametrize(
    ("code", "failures", "timeout_s", "left"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, 2, 15.0, 1), (KafkaError.OFFSET_NOT_AVAILABLE, 10**6, 0.0, 10**6 - 1)],
)
def test_should_raise_any_other_error_at_once_and_a_move_that_does_not_end(
    monkeypatch, code, failures, timeout_s, left
):
    consumer = Moving(code, failures)
    monkeypatch.setattr(topics, "_consumer", lambda *_: consumer)
    with pytest.raises(KafkaException):
        topics.end_offsets("", [PLACE], "read_committed", timeout_s)
    assert consumer.failures == left
