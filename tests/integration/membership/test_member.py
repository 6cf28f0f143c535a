"""A group member on a real broker: it closes in any state of the group."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException
from tests.support.group_requests import remove_from_group

from tidemark.errors import PreflightFailed
from tidemark.kafka import member as module
from tidemark.kafka.member import Member
from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def member_of(settings, group, topic, name, lock, session_ms=6000):
    config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": group, "group.instance.id": name}
    return Member({**config, "session.timeout.ms": session_ms, "log_level": 0}, [topic], lock, lambda: None)


class Slow:
    """A client in a callback that goes on only once the client has ended, as on a machine that has much to do."""

    def __init__(self, consumer):
        self._consumer = consumer

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def incremental_assign(self, partitions):
        self._consumer.incremental_assign(partitions)
        assert wait_until(self._refuses, 60)

    def _refuses(self):
        try:
            self._consumer.assignment()
        except KafkaException as error:
            return error.args[0].code() == KafkaError._DESTROY
        return False


def test_should_close_while_the_client_reports_that_it_has_rejoined(
    settings, admin, broker, create_topic, unique, monkeypatch
):
    """The group has removed the member and assigns it nothing: the client closes before its last callback returns."""
    monkeypatch.setattr(module, "_STOPS_S", 0.1)
    called_back = []
    assigned = Member._assigned

    def noted(member, consumer, partitions):
        if member is first:  # Which the group may call back, too, when the other joins.
            assigned(member, consumer, partitions)
            return
        client = Slow(consumer) if called_back else consumer
        called_back.append(client)
        assigned(member, client, partitions)

    group, topic, lock = unique("group"), create_topic(unique("source"), 1), threading.RLock()
    first = member_of(settings, group, topic, "first", threading.RLock())
    first.start()

    def member_id():
        """The id that the group knows, once it is stable."""
        found = retry_until_stable(lambda: describe_group(settings, admin, group), group, 60)
        ids = {member.group_instance_id: member.member_id for member in found.members}
        return ids.get("closed") if found.state is ConsumerGroupState.STABLE else None

    try:
        assert wait_until(lambda: bool(first.ownership.held()), 60)
        monkeypatch.setattr(Member, "_assigned", noted)
        member = member_of(settings, group, topic, "closed", lock)
        member.start()
        assert wait_until(lambda: len(called_back) == 1, 60)
        # Without the lock the member does not poll, so that it is called back while it is closed.
        with lock:
            before = member.metadata().member_id
            remove_from_group(broker.bootstrap, group, "closed")
            assert wait_until(lambda: member_id() not in (None, before), 60)
            member.close()
        assert member.ownership.held() == {}
        assert len(called_back) == 2, "nothing was called back while it was closed"
    finally:
        first.close()


def test_should_end_when_the_broker_refuses_its_session(settings, broker, create_topic, unique):
    """The broker's group.min.session.timeout.ms is 1000."""
    member = member_of(settings, unique("group"), create_topic(unique("source"), 1), "short", threading.RLock(), 999)
    member.start()
    try:
        with pytest.raises(PreflightFailed, match="TIDEMARK_SESSION_TIMEOUT_MS"):
            member.await_verdict(60)
    finally:
        member.close()


def test_should_end_when_another_program_is_in_its_group(settings, broker, create_topic, unique):
    group, topic = unique("group"), create_topic(unique("source"), 1)
    config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": group}
    other = Consumer({**config, "partition.assignment.strategy": "range"})
    other.subscribe([topic])
    member = member_of(settings, group, topic, "second", threading.RLock())
    try:
        assert wait_until(lambda: other.poll(0.1) is None and bool(other.assignment()), 60)
        member.start()
        with pytest.raises(PreflightFailed, match="another program is in the consumer group"):
            member.await_verdict(60)
    finally:
        member.close()
        other.close()
