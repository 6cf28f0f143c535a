"""The heartbeats of a group's member, and its end also when its client does not close."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import InvalidSettings, OutcomeUnknown, PreflightFailed
from tidemark.kafka import member as members
from tidemark.kafka.member import Member, heartbeat_ms
from tidemark.settings import LONGEST_SESSION_MS, Settings


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


def a_client(poll):
    return SimpleNamespace(poll=poll, subscribe=lambda *_args, **_callbacks: None)


def raising(error):
    def poll(_timeout_s):
        raise error

    return poll


@pytest.mark.parametrize(
    "error", [SystemError("returned NULL without setting an exception"), ValueError("a callback failed")]
)
def test_should_fail_with_whatever_a_poll_raises(member, error):
    member._consumer = a_client(raising(error))
    member.start()
    with pytest.raises(OutcomeUnknown, match=str(error)):
        member.await_verdict(60)


@pytest.mark.timeout(60)
def test_should_fail_when_its_thread_has_ended_without_a_word(member):
    member.check()
    member._consumer = a_client(raising(SystemExit()))
    member.start()
    member._thread.join()
    with pytest.raises(OutcomeUnknown, match="thread of the group member has ended"):
        member.check()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError.INVALID_SESSION_TIMEOUT, "TIDEMARK_SESSION_TIMEOUT_MS"),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, "another program is in the consumer group"),
    ],
)
def test_should_say_what_to_do_when_the_group_refuses_the_member(member, code, remedy):
    """It would get the same answer for ever."""
    answer = SimpleNamespace(error=lambda: KafkaError(code, "JoinGroup failed"))
    member._consumer = a_client(lambda _timeout_s: answer)
    member.start()
    with pytest.raises(PreflightFailed, match=remedy) as refused:
        member.await_verdict(60)
    assert "JoinGroup failed" in str(refused.value)


def test_should_accept_the_longest_session_that_a_setting_can_have():
    Member(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, "session.timeout.ms": LONGEST_SESSION_MS},
        ["t"], threading.RLock(), print,
    )._consumer.close()  # fmt: skip
    with pytest.raises(InvalidSettings, match=f"setting session_timeout_ms.* {LONGEST_SESSION_MS}"):
        Settings.load(session_timeout_ms=LONGEST_SESSION_MS + 1)
