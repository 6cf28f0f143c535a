"""The heartbeats of a group's member, and its end also when its client does not close."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.kafka import member as members
from tidemark.kafka.member import Member, heartbeat_ms
from tidemark.settings import Settings


@pytest.mark.parametrize(
    ("session_ms", "heartbeat"), [(1_000, 200), (2_000, 200), (6_000, 600), (10_000, 1_000), (45_000, 1_000)]
)
def test_should_send_heartbeats_so_often_that_tasks_are_taken_over_a_second_after_a_session(session_ms, heartbeat):
    assert heartbeat_ms(Settings.load(session_timeout_ms=session_ms)) == heartbeat


@pytest.fixture
def member():
    made = Member(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}, ["t"], threading.RLock(), print
    )
    client = made._consumer
    yield made
    client.close()


@pytest.mark.timeout(60)
def test_should_end_though_its_client_never_does(member, monkeypatch, caplog):
    monkeypatch.setattr(members, "_CLIENT_CLOSES_S", 0.1)
    never = threading.Event()
    member._consumer = SimpleNamespace(close=never.wait)
    member.close()
    never.set()
    assert "did not close" in caplog.text


def test_should_raise_what_its_client_raises(member, monkeypatch):
    monkeypatch.setattr(members, "_CLIENT_CLOSES_S", 60)

    def close():
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    member._consumer = SimpleNamespace(close=close)
    with pytest.raises(KafkaException, match="_DESTROY"):
        member.close()
