"""The facts that a standby asks Kafka for every few seconds."""

from __future__ import annotations

import pytest

from tidemark.kafka.topic_config import changelog_policies
from tidemark.names import TaskId
from tidemark.recovery import facts
from tidemark.recovery.facts import Witnesses
from tidemark.settings import Settings
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
