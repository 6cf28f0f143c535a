"""`EndOffsets` asks for metadata before its first request for offsets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.offsets import EndOffsets, is_unanswered
from tidemark.names import TopicPartition

PLACE = TopicPartition("in", 0)


class Admin:
    """Notes its requests. There is no answer to the first one for metadata if the brokers are away."""

    def __init__(self, *, is_away=False):
        self.asked, self._is_away = [], is_away

    def list_topics(self, timeout):
        self.asked.append("metadata")
        if self._is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def list_offsets(self, places, isolation_level, request_timeout):
        self.asked.append("offsets")
        answer = Future()
        answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(places, answer)


def test_should_ask_for_metadata_once_before_the_first_offsets():
    """Otherwise the first request of a new client may wait for seconds, until it is repeated."""
    admin = Admin()
    ends = EndOffsets(admin, 10)
    assert ends.of([]) == {}
    assert ends.of([PLACE]) == ends.stable([PLACE]) == {PLACE: 7}
    assert admin.asked == ["metadata", "offsets", "offsets"]


def test_should_ask_for_offsets_also_without_metadata():
    admin = Admin(is_away=True)
    assert EndOffsets(admin, 10).of([PLACE]) == {PLACE: 7}
    assert admin.asked == ["metadata", "offsets"]


def answered(offset):
    answer = Future()
    answer.set_result(SimpleNamespace(offset=offset))
    return answer


def refused(code):
    answer = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    return answer


def ends_with(*answers, timeout_s=0.0):
    """Offsets of as many partitions of `in`, each with the answer of a broker to it."""
    places = [TopicPartition("in", number) for number in range(len(answers))]
    admin = Admin()
    admin.list_offsets = lambda asked, **_: dict(zip(asked, answers, strict=True))
    return EndOffsets(admin, timeout_s), places


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ([answered(7), answered(OFFSET_INVALID), answered(7)], "in[1]"),
        ([answered(7), answered(7), refused(KafkaError.LEADER_NOT_AVAILABLE)], "in[2]"),
        ([refused(KafkaError._TIMED_OUT)] * 3, "in[0], in[1], in[2]"),
        ([refused(KafkaError._TIMED_OUT)] * 5, "in[0], in[1], in[2] and 2 more"),
    ],
)
def test_should_name_the_partitions_without_an_answer(answers, named):
    ends, places = ends_with(*answers)
    with pytest.raises(OutcomeUnknown) as unknown:
        ends.of(places)
    assert str(unknown.value).startswith(f"failed to list the offsets of {named}; ")
    assert is_unanswered(unknown.value)


def test_should_not_wait_for_a_leader_if_another_partition_is_refused_for_good():
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    ends, places = ends_with(refused(KafkaError.LEADER_NOT_AVAILABLE), refused(denied), timeout_s=3600.0)
    with pytest.raises(OutcomeUnknown) as unknown:
        ends.of(places)
    assert unknown.value.__cause__.args[0].code() == denied
