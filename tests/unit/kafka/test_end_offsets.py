"""`EndOffsets` asks for metadata before its first request for offsets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from confluent_kafka import KafkaError, KafkaException

from tidemark.kafka.offsets import EndOffsets
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
