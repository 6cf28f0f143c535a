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


def test_should_go_on_after_a_record_of_another_form_and_after_any_error(monkeypatch):
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
