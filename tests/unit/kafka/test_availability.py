"""An outage is one of the partitions that an application needs: those of its topics, and those of its coordinators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.kafka import availability
from tidemark.kafka.availability import coordinator_partition, find_outage, needed_topics
from tidemark.settings import Settings
from tidemark.topology.builder import Topology

SETTINGS = Settings.load()


@pytest.fixture
def topics(monkeypatch):
    """The topics of a cluster whose partitions all have a leader and all replicas in sync."""

    def described(partitions):
        each = (SimpleNamespace(leader=1, replicas=[1, 2], isrs=[1, 2]) for _ in range(partitions))
        return SimpleNamespace(partitions=dict(enumerate(each)))

    counts = {"__consumer_offsets": 50, "__transaction_state": 50, "orders-n": 1, "orders-eu-n": 1}
    found = {name: described(partitions) for name, partitions in counts.items()}
    client = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=found))
    monkeypatch.setattr(availability, "AdminClient", lambda _config: client)
    monkeypatch.setattr(
        availability,
        "topic_configs",
        lambda _client, names, _settings: {n: {"min.insync.replicas": "2"} for n in names},
    )
    return {name: topic.partitions for name, topic in found.items()}


def why(topics=("orders-n", "a topic that does not exist", "__transaction_state"), instance=0):
    outage = find_outage(SETTINGS, "orders", instance, topics)
    return None if outage is None else outage.why


def test_should_count_the_topics_that_are_asked_for_and_no_others_of_a_similar_name(topics):
    topics["orders-eu-n"][0].leader = -1
    assert why() is None
    topics["orders-n"][0].leader = -1
    assert why() == "no broker leads orders-n[0]"


@pytest.mark.parametrize(
    ("topic", "name", "instance"),
    [
        ("__consumer_offsets", "orders", 0),
        ("__transaction_state", "orders-0", 0),
        ("__transaction_state", "orders-7", 7),
    ],
)
def test_should_count_only_the_partitions_of_its_own_coordinators(topics, topic, name, instance):
    own = coordinator_partition(name, 50)
    for number, partition in topics[topic].items():
        partition.leader = 1 if number == own else -1
    assert why(instance=instance) is None
    topics[topic][own].leader = -1
    assert why(instance=instance) == f"no broker leads {topic}[{own}]"


def test_should_not_wait_for_transactions_that_are_not_used(topics):
    for partition in topics["__transaction_state"].values():
        partition.leader = -1
    assert why(["orders-n"]) is None


def test_should_name_needed_partitions_that_accept_no_record(topics):
    topics["orders-eu-n"][0].isrs = topics["__consumer_offsets"][0].isrs = [1]
    assert why() is None
    topics["orders-n"][0].isrs = [1]
    assert why() == "fewer replicas than min.insync.replicas are in sync of orders-n[0]"


# Hash codes: one above zero, one below it, and the smallest one, which has no positive counterpart.
@pytest.mark.parametrize(
    ("name", "partition"), [("app", 96_801 % 50), ("orders", 1_008_770_331 % 50), ("polygenelubricants", 0)]
)
def test_should_compute_the_partition_of_a_coordinator_as_kafka_does(name, partition):
    assert coordinator_partition(name, 50) == partition


def test_should_need_sources_and_whatever_a_commit_writes_to():
    topology = Topology("beats")
    topology.stream("pulse", schema="id STRING").group_by_key().count(name="n", store="n").to("counts")
    own = ("beats-commits", "beats-dlq", "beats-n-changelog", "beats-topology")
    assert needed_topics(topology.plan()) == ("__transaction_state", *own, "counts", "pulse")


def test_should_not_need_transactions_when_each_record_is_written_at_least_once():
    topology = Topology("beats", guarantee="at_least_once")
    topology.stream("pulse", schema="id STRING").group_by_key().count(name="n", store="n").to("counts")
    assert "__transaction_state" not in needed_topics(topology.plan())
