"""Faults in Kafka that concern one application only, and its dead letters, with brokers that are played by a few offsets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.support.overview import NOW

from tidemark.commit.dead_letter import REASON
from tidemark.errors import OutcomeUnknown
from tidemark.names import TopicPartition, commits_topic, dlq_topic, topology_topic
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
    monkeypatch.setattr(live, "messages_of_ranges", lambda *_, **__: iter(()))
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
    def stalled(_client, ranges, **_):
        if any(place.topic == dlq_topic(CLICKS) for place in ranges):
            raise OutcomeUnknown("a transaction is open")
        return iter(())

    monkeypatch.setattr(live, "messages_of_ranges", stalled)
    views = reader.look(NOW)
    assert (views[CLICKS].letters_fault, views[CLICKS].fault) == ("a transaction is open", None)
    assert views[CLICKS].total_lag is not None
    assert (views[SHOPPING].letters_fault, views[SHOPPING].dead_letters) == (None, END)


def letter_at(place, offset):
    return SimpleNamespace(
        topic=lambda: place.topic, partition=lambda: place.partition, offset=lambda: offset, key=lambda: b"k",
        value=lambda: b"v", timestamp=lambda: (1, NOW + offset), headers=lambda: [(REASON, b"not JSON")],
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 100, 101, 201])
def test_the_newest_dead_letters_of_many_partitions_should_be_found_before_their_markers(
    reader, broker, monkeypatch, count
):
    """The last offset of a partition is the marker of the transaction that wrote the dead letter."""
    places = [TopicPartition(dlq_topic(CLICKS), number) for number in range(count)]
    broker.counts = {dlq_topic(CLICKS): count}
    broker.ends = dict.fromkeys(places, 2) | {TopicPartition(dlq_topic(SHOPPING), 0): 0}
    read = []

    def messages(_client, ranges, **_):
        read.append(set(ranges))
        yield from (
            (place, [letter_at(place, offset) for offset in range(start, end - 1)])
            for place, (start, end) in ranges.items()
        )

    monkeypatch.setattr(live, "messages_of_ranges", messages)
    view = reader.look(NOW)[CLICKS]
    assert (view.reasons, view.dead_letters) == ({"not JSON": min(count, 200)}, 2 * count)
    read.clear()
    broker.ends[places[0]] = 4
    view = reader.look(NOW)[CLICKS]
    assert read == [{places[0]}]
    assert view.reasons == {"not JSON": min(count + 2, 200)}
    assert max(sample.offset for sample in view.samples) == 2
