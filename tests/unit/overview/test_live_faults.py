"""Faults in Kafka that concern one application only, with brokers that are played by a few offsets."""

from __future__ import annotations

import pytest
from tests.support.overview import NOW

from tidemark.errors import OutcomeUnknown
from tidemark.names import commits_topic, dlq_topic, topology_topic
from tidemark.overview import live
from tidemark.overview.live import LiveReader
from tidemark.settings import Settings
from tidemark.topology_loader import load

PLANS = {plan.application_id: plan for plan in (load("clicks").plan(), load("shopping").plan())}
CLICKS, SHOPPING = PLANS
END = 40


class Broker:
    """Every partition ends at `END`, except for those in `ends`. Those of the topics in `leaderless` have no leader."""

    def __init__(self):
        self.leaderless, self.ends, self.counts = set(), {}, {}
        self.is_away = False

    def partitions(self):
        if self.is_away:
            raise OutcomeUnknown("no broker answers")
        known = [topology_topic, commits_topic, dlq_topic]
        own = {topic(app): 1 for app in PLANS for topic in known}
        sources = {topic: 1 for plan in PLANS.values() for s in plan.subtopologies for topic in s.source_topics}
        return own | sources | self.counts

    def of(self, places):
        for place in places:
            if place.topic in self.leaderless:
                raise OutcomeUnknown(f"failed to list the offsets of {place}")
        return {place: self.ends.get(place, END) for place in places}

    def beginnings(self, places):
        return dict.fromkeys(places, 0)

    def at_time(self, places, _at_ms):
        return self.of(places)


class NoCommits:
    """A consumer that gets nothing."""

    def incremental_assign(self, _places):
        pass

    def consume(self, _most, timeout):
        return []

    def close(self):
        pass


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def reader(broker, monkeypatch):
    monkeypatch.setattr(live, "named_plan", lambda plan, *_: plan)
    monkeypatch.setattr(live, "last_commit_records", lambda *_, **__: {})
    monkeypatch.setattr(live, "read_committed_consumer", lambda *_: NoCommits())
    monkeypatch.setattr(live, "messages_until", lambda *_, **__: iter(()))
    made = LiveReader(PLANS, Settings.load(bootstrap_servers="127.0.0.1:1"))
    made._ends, made._partitions = broker, broker.partitions
    yield made
    made.close()


@pytest.mark.parametrize("topic", [dlq_topic(CLICKS), topology_topic(CLICKS), "clicks"])
def test_a_partition_without_a_leader_should_hide_only_its_own_application(reader, broker, topic):
    for _ in range(2):
        broker.leaderless = {topic}
        views = reader.look(NOW)
        assert views[CLICKS].fault == f"failed to list the offsets of {topic}[0]"
        assert (views[SHOPPING].fault, views[SHOPPING].total_lag is None) == (None, False)
        broker.leaderless = set()
        assert [view.fault for view in reader.look(NOW).values()] == [None, None]


def test_brokers_that_went_away_during_a_look_should_be_a_fault_of_all(reader, broker):
    reader.look(NOW)

    def gone(_places):
        broker.is_away = True
        raise OutcomeUnknown("failed to list offsets")

    broker.of = gone
    with pytest.raises(OutcomeUnknown, match="no broker answers"):
        reader.look(NOW)


def test_an_open_transaction_among_the_dead_letters_should_hide_only_these(reader, monkeypatch):
    def stalled(_client, place, *_, **__):
        if place.topic == dlq_topic(CLICKS):
            raise OutcomeUnknown("a transaction is open")
        return iter(())

    monkeypatch.setattr(live, "messages_until", stalled)
    views = reader.look(NOW)
    assert (views[CLICKS].letters_fault, views[CLICKS].fault) == ("a transaction is open", None)
    assert views[CLICKS].total_lag is not None
    assert (views[SHOPPING].letters_fault, views[SHOPPING].dead_letters) == (None, END)
