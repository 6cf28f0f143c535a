"""The facts that a standby asks Kafka for every few seconds."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaException

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.committed_reader import read_committed_consumer
from tidemark.kafka.topic_config import changelog_policies
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.recovery import facts
from tidemark.recovery.facts import Witnesses
from tidemark.settings import Settings
from tidemark.standby import facts_poller
from tidemark.standby.facts_poller import FactsPoller
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling

TASKS = [TaskId(0, 0), TaskId(0, 1)]


class Ends:
    """Changelogs whose beginning was deleted by age."""

    def of(self, partitions):
        return dict.fromkeys(partitions, 100)

    def beginnings(self, partitions):
        return dict.fromkeys(partitions, 10)


@pytest.fixture
def asked(monkeypatch):
    """The facts about a window store, and a list of the changelogs whose commit records are read."""
    read = []
    monkeypatch.setattr(facts, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(facts, "last_commit_records", lambda *_, **__: {})
    for name in ("oldest_writes", "last_lost_writes"):
        monkeypatch.setattr(facts, name, lambda *given, **_: read.extend(given[3]) or {})
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="w").to("out")
    plan = topology.plan()
    return Witnesses(plan, Settings.load(), {}, Ends(), changelog_policies(plan), lambda: 10**12), read


def test_should_read_the_history_of_commits_for_a_start_but_not_for_each_look_of_a_standby(asked):
    witnesses, read = asked
    FactsPoller(witnesses, TASKS).look()
    assert read == []
    witnesses.facts(TASKS)
    assert [changelog.partition for changelog in read] == [0, 1, 0, 1]


def polled(witnesses, monkeypatch, errors) -> FactsPoller:
    """A poller that asks all the time in its thread. Each question has the next error, and succeeds when none is left."""
    poller = FactsPoller(witnesses, TASKS)
    poller.look()
    monkeypatch.setattr(facts_poller, "_LOOK_S", 0.0)
    monkeypatch.setattr(facts_poller, "_LOOK_SHARE", 0.0)

    def fail(*_):
        if errors:
            raise errors.pop()
        return {}

    monkeypatch.setattr(facts, "committed_offsets", fail)
    poller.start()
    return poller


def test_should_go_on_after_an_error_of_any_kind(asked, monkeypatch, caplog):
    poller = polled(asked[0], monkeypatch, [KafkaException("no thread"), RuntimeError("never seen before")])
    before = poller.newest_facts
    try:
        assert wait_until(lambda: poller.newest_facts is not before, 60)
    finally:
        poller.close()
    assert (
        "failed to read the current tasks; following continues with those read last: never seen before" in caplog.text
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_should_not_give_old_facts_for_ever_when_its_thread_has_ended(asked, monkeypatch):
    poller = polled(asked[0], monkeypatch, [SystemExit()])
    poller._thread.join(60)
    with pytest.raises(OutcomeUnknown, match="the thread that reads the current tasks has ended"):
        _ = poller.newest_facts
    poller.close()
    # Whoever has closed it may still read the last facts.
    assert poller.newest_facts.tasks


def test_should_not_let_an_error_of_the_client_through_when_a_reader_cannot_be_started():
    with pytest.raises(OutcomeUnknown, match="the client reader cannot be started"):
        read_committed_consumer({"bootstrap.servers": "127.0.0.1:1", "fetch.min.bytes": -1}, "reader")


def test_should_not_wait_for_a_broker_that_is_away_when_it_is_closed(asked, monkeypatch):
    monkeypatch.setattr(facts_poller, "_CLOSE_S", 0.1)
    waiting, answers = threading.Event(), threading.Event()
    poller = FactsPoller(asked[0], TASKS)
    monkeypatch.setattr(facts, "committed_offsets", lambda *_: waiting.set() or (answers.wait(60) and {}))
    poller.start()
    assert waiting.wait(60)
    poller.close()
    assert poller._thread.is_alive()
    answers.set()
    poller._thread.join(60)
    assert not poller._thread.is_alive()
