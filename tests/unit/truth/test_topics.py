"""Queries to brokers while leaders and coordinators move, and while topics are written."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from tests.support.truth import topics

PLACE, OTHER = ("in", 0), ("in", 1)


class Found(NamedTuple):
    """What is found of one partition: an offset or an error."""

    topic: str
    partition: int
    offset: int
    error: KafkaError | None


class Moving:
    """A consumer whose first answers are an error, of the whole or of one partition."""

    def __init__(self, code: int, failures: int, is_whole: bool = True) -> None:
        self._code, self._is_whole = code, is_whole
        self.failures = failures

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[Found]:
        offset = {OFFSET_BEGINNING: 3, OFFSET_END: 7}
        found = [Found(p.topic, p.partition, offset[p.offset], None) for p in partitions]
        if not self.failures:
            return found
        self.failures -= 1
        if self._is_whole:
            raise KafkaException(KafkaError(self._code))
        return [*found[:-1], found[-1]._replace(offset=-1001, error=KafkaError(self._code))]

    def poll(self, timeout):
        """Nothing is assigned, so nothing comes."""

    def close(self):
        """There is nothing to close."""


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("code", sorted(topics._LEADER_MOVES))
def test_should_retry_for_offsets_while_the_leader_moves(monkeypatch, code, is_whole):
    monkeypatch.setattr(topics, "_consumer", lambda *_: Moving(code, 2, is_whole))
    assert topics.end_offsets("", [PLACE, OTHER], "read_committed") == {PLACE: 7, OTHER: 7}
    assert topics.beginnings("", [PLACE, OTHER]) == {PLACE: 3, OTHER: 3}


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
