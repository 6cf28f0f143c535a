"""Records of processes that announce themselves: what is read from the topic, and what the thread that reads it survives."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.queries import endpoints
from tidemark.queries.endpoints import Endpoint, Endpoints
from tidemark.queries.hosts import CopyState, StoreRestore

RESTORE = StoreRestore("n", 0, 5, 9, 1.5)
OTHER = Endpoint("1", "http://host-b:8080", {TaskId(0, 0): CopyState.ACTIVE}, (RESTORE,), "rack-b", "launch-b")


def record(**fields) -> bytes:
    return json.dumps({**json.loads(OTHER.to_bytes()), **fields}).encode()


def test_should_read_what_it_has_written():
    assert Endpoint.from_bytes("1", OTHER.to_bytes()) == OTHER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"url": "http://host-b:8080"}',
        record(copies=[]),
        record(copies={"0_0": "unheard of"}),
        record(copies={"zero": "active"}),
        record(restores=None),
        record(restores=[5]),
        record(restores=[{**RESTORE.to_dict(), "more": 1}]),
        record(restores=[{**RESTORE.to_dict(), "next_offset": "5"}]),
        record(restores=[{**RESTORE.to_dict(), "remaining_s": "soon"}]),
        record(url=None),
        record(url="host-b:8080"),
        record(url="http://"),
        record(url="http://[::1"),
        record(url="http://host-b:99999"),
        record(url="http://host-b:8080/\r\nHost: other"),
    ],
)
def test_should_refuse_a_record_of_any_other_form(data):
    with pytest.raises(ValueError, match="it is not the record of a process"):
        Endpoint.from_bytes("1", data)


@dataclass(frozen=True)
class Message:
    name: bytes
    content: bytes

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.content

    def error(self) -> None:
        return None


class Topic:
    """A consumer. Each read gives the next of `reads`: messages, or an error that is raised."""

    def __init__(self, reads) -> None:
        self.reads = list(reads)

    def assign(self, partitions) -> None:
        return

    def consume(self, number, timeout):
        found = self.reads.pop(0) if self.reads else []
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        return


def test_should_go_on_after_a_record_of_another_form_and_after_any_error(monkeypatch, caplog):
    monkeypatch.setattr(endpoints, "_ANNOUNCE_EVERY_S", 0.0)
    failures = [KafkaException(KafkaError(KafkaError._FAIL)), RuntimeError("never seen before")]
    odd = [Message(b"2", record(copies=[])), Message(b"3", b"[" * 100_000)]
    monkeypatch.setattr(endpoints, "Consumer", lambda _: Topic([odd, *failures, [Message(b"1", OTHER.to_bytes())]]))
    own = Endpoint("0", "http://host-a:8080", {}, launch="launch-a")
    known = Endpoints("app", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, lambda: own, lambda: None)
    known.start()
    try:
        assert wait_until(lambda: known.others() == [OTHER], 60)
    finally:
        known.close()
    assert "the endpoint of 3 cannot be read, so it is not asked: it is not the record" in caplog.text
    assert "; run the same version of Tidemark everywhere" in caplog.text


class Sent:
    """A producer that only notes the values that it is given."""

    def __init__(self, _) -> None:
        self.values: list[bytes | None] = []

    def produce(self, topic, value, key, **_) -> None:
        self.values.append(value)

    def poll(self, timeout) -> None:
        return

    def flush(self, timeout) -> None:
        return


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def own():
    return Endpoint("0", "http://host-a:8080", {}, launch="launch-a")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def known(monkeypatch, own, clock):
    """The announcements of a process, without a thread and without a broker."""
    monkeypatch.setattr(endpoints, "Producer", Sent)
    monkeypatch.setattr(endpoints, "Consumer", lambda _: Topic([]))
    return Endpoints("app", {}, lambda: own, lambda: None, clock)


def test_should_forget_a_process_that_has_not_announced_itself_for_three_rounds_of_its_own(known, own, clock):
    known._take(b"0", own.to_bytes())
    known._take(b"1", OTHER.to_bytes())
    for _ in range(2):
        clock.now_s += 30.0
        # A restore changes what is announced every second, which is no round.
        for _ in range(5):
            known._take(b"0", own.to_bytes())
    assert known.others() == [OTHER]
    # Without a broker nothing is read, and nobody is forgotten.
    clock.now_s += 3600.0
    assert known.others() == [OTHER]
    known._take(b"0", own.to_bytes())
    assert known.others() == []
    known._take(b"1", OTHER.to_bytes())
    assert known.others() == [OTHER]


def test_should_announce_itself_again_after_half_a_minute_but_only_when_its_last_record_has_come_back(
    known, own, clock
):
    known._announce()
    clock.now_s += 30.0
    known._announce()
    assert known._producer.values == [own.to_bytes()]
    known._take(b"0", own.to_bytes())
    known._announce()
    assert known._producer.values == [own.to_bytes()] * 2
    known._take(b"0", own.to_bytes())
    clock.now_s += 29.9
    known._announce()
    assert known._producer.values == [own.to_bytes()] * 2


@pytest.mark.parametrize(("code", "is_replaced"), [(KafkaError._UNKNOWN_TOPIC, False), (KafkaError._FATAL, True)])
def test_should_announce_itself_later_when_the_client_refuses_the_record(
    known, own, clock, monkeypatch, code, is_replaced
):
    def refuse(*_, **__):
        raise KafkaException(KafkaError(code))

    created = []
    known._create_topic = lambda: created.append(clock.now_s)
    first = known._producer
    monkeypatch.setattr(first, "produce", refuse)
    known._announce()
    assert (known._producer is not first) is is_replaced
    monkeypatch.undo()
    clock.now_s += 9.0
    known._announce()
    assert known._producer.values == []
    clock.now_s += 1.0
    known._announce()
    assert known._producer.values == [own.to_bytes()]
    # Somebody may have deleted the topic.
    assert created == [100.0, 110.0]
