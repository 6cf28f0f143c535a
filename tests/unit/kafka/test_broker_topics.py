"""An application's topics: their required settings, and what is refused, without a broker."""

from __future__ import annotations

import pytest

from tidemark.errors import PreflightFailed
from tidemark.kafka.cluster import TopicFacts
from tidemark.kafka.topics import TopicSpec, internal_topics, user_topics, verify_topic
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.topology.plan import TopologyPlan
from tidemark.topology.windows import tumbling

DAY_MS = 86_400_000
CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "message.timestamp.type": "CreateTime"}
NEEDED = TopicSpec("app-store-changelog", 4, CONFIG)
FACTS = TopicFacts(partitions=4, replicas=3)


def two_subtopologies() -> TopologyPlan:
    topology = Topology("app")
    beats = topology.stream("beats", schema="n INT")
    beats.group_by_key().windowed_by(tumbling("60s")).count(store="minutes", retention="6h").to("out")
    beats.group_by_key().count(store="total").to("totals")
    topology.stream("clicks", schema="page STRING").to("out")
    return topology.plan()


def test_should_list_sources_and_sinks_once_as_user_topics() -> None:
    assert user_topics(two_subtopologies()) == ["beats", "out", "totals", "clicks"]


def test_should_give_internal_topics_a_partition_per_task() -> None:
    specs = internal_topics(two_subtopologies(), Settings.load(), {"beats": 4, "clicks": 6})
    assert [(spec.name, spec.partitions) for spec in specs] == [
        ("app-minutes-changelog", 4),
        ("app-total-changelog", 4),
        ("app-commits", 6),
        ("app-dlq", 6),
        ("app-events", 1),
        ("app-topology", 1),
    ]


def test_should_configure_internal_topics_for_what_they_hold() -> None:
    settings = Settings.load(commit_record_retention_ms=123)
    specs = {s.name: s.config for s in internal_topics(two_subtopologies(), settings, {"beats": 4, "clicks": 6})}
    changelog = {"delete.retention.ms": str(DAY_MS), "min.compaction.lag.ms": "600000"}
    changelog |= {"message.timestamp.type": "CreateTime", "retention.bytes": "-1"}
    assert specs == {
        "app-minutes-changelog": changelog
        | {"cleanup.policy": "compact,delete", "retention.ms": str(6 * 3_600_000 + DAY_MS)},
        "app-total-changelog": changelog | {"cleanup.policy": "compact"},
        "app-commits": {"cleanup.policy": "compact", "min.compaction.lag.ms": "123"},
        "app-dlq": {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)},
        "app-events": {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)},
        "app-topology": {"cleanup.policy": "compact"},
    }


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"retention.ms": "1001"},
        {"retention.ms": "-1"},
        {"cleanup.policy": "delete,compact"},
        {"min.insync.replicas": "3"},
        {"segment.bytes": "7"},
    ],
)
def test_should_accept_a_topic_that_keeps_enough(changed: dict[str, str]) -> None:
    verify_topic(NEEDED, FACTS, CONFIG | changed, replication_factor=3)


@pytest.mark.parametrize(
    ("facts", "changed", "factor", "says"),
    [
        (TopicFacts(3, 3), {}, -1, ["has 3 partitions", "need 4", "tidemark rescale run"]),
        (TopicFacts(5, 3), {}, -1, ["has 5 partitions", "need 4"]),
        (
            FACTS,
            {},
            4,
            ["has 3 replicas", "replication_factor is 4", "reassign-partitions", "TIDEMARK_REPLICATION_FACTOR to 3"],
        ),
        (
            FACTS,
            {"min.insync.replicas": "4"},
            -1,
            ["has 3 replicas", "min.insync.replicas=4", "nothing can be written"],
        ),
        (FACTS, {"retention.ms": "999"}, -1, ["retention.ms=999", "needs 1000", "--add-config retention.ms=[1000]"]),
        (FACTS, {"retention.ms": ""}, -1, ["retention.ms=,", "needs 1000"]),
        (FACTS, {"cleanup.policy": "delete"}, -1, ["cleanup.policy=delete", "needs compact,delete"]),
        (FACTS, {"cleanup.policy": "compact"}, -1, ["cleanup.policy=compact,", "needs compact,delete"]),
        (FACTS, {"message.timestamp.type": "LogAppendTime"}, -1, ["LogAppendTime", "needs CreateTime"]),
    ],
)
def test_should_name_actual_value_required_value_and_remedy_of_a_wrong_topic(
    facts: TopicFacts, changed: dict[str, str], factor: int, says: list[str]
) -> None:
    with pytest.raises(PreflightFailed) as refused:
        verify_topic(NEEDED, facts, CONFIG | changed, factor)
    assert "app-store-changelog" in str(refused.value)
    assert [part for part in says if part not in str(refused.value)] == [], str(refused.value)


def test_should_give_a_repartition_topic_as_many_partitions_as_the_topic_it_is_joined_with() -> None:
    topology = Topology("app")
    other = topology.stream("b", schema="id STRING, n INT", key="id")
    moved = topology.stream("a", schema="x STRING, m INT", key="x").repartition("x", name="moved")
    moved.join(other, within="1m").to("out")
    specs = {
        s.name: s.partitions for s in internal_topics(topology.plan(), Settings.load(), {"a": 3, "b": 5, "out": 1})
    }
    assert specs["app-moved-repartition"] == 5


def test_should_give_joined_repartition_topics_the_highest_task_count_of_their_writers() -> None:
    topology = Topology("app")
    orders = topology.stream("orders", schema="id STRING, n INT").repartition("id", name="orders")
    payments = topology.stream("payments", schema="id STRING, m INT").repartition("id", name="payments")
    joined = orders.join(payments, within="1m", name="paid")
    joined.group_by("CAST(n AS STRING)", "by-n").reduce("a.b:c", store="last").to("out")
    plan, counts = topology.plan(), {"orders": 4, "payments": 3, "out": 1}
    specs = {s.name: s.partitions for s in internal_topics(plan, Settings.load(), counts)}
    moved = {"app-orders-repartition", "app-payments-repartition", "app-by-n-repartition"}
    assert {specs[topic] for topic in moved | {"app-paid-this-store-changelog", "app-last-changelog"}} == {4}
    existing = counts | {"app-orders-repartition": 6}
    specs = {s.name: s.partitions for s in internal_topics(plan, Settings.load(), existing)}
    assert {specs[topic] for topic in moved} == {6}


def test_should_give_joined_repartition_topics_the_highest_count_also_where_one_comes_later() -> None:
    topology = Topology("app")
    chain = topology.stream("orders", schema="id STRING, n INT").repartition("CAST(n AS STRING)", name="one")
    orders = chain.repartition("id", name="two")
    payments = topology.stream("payments", schema="id STRING, m INT").repartition("id", name="payments")
    payments.join(orders, within="1m", name="paid").to("out")
    counts = {"orders": 4, "payments": 3, "out": 1}
    specs = {s.name: s.partitions for s in internal_topics(topology.plan(), Settings.load(), counts)}
    assert {specs["app-two-repartition"], specs["app-payments-repartition"], specs["app-one-repartition"]} == {4}


@pytest.mark.parametrize("between", [4, 7])
def test_should_give_a_repartition_topic_the_count_of_the_one_from_which_it_comes_and_with_which_it_is_joined(
    between: int,
) -> None:
    topology = Topology("app")
    orders = topology.stream("orders", schema="id STRING, n INT").repartition("id", name="one")
    by_number = orders.repartition("CAST(n AS STRING)", name="two")
    if between == 7:
        by_number = by_number.join(topology.stream("numbers", schema="name STRING", key="_key"), within="1m")
    again = by_number.select("id", "n AS m").repartition("id", name="three")
    orders.join(again, within="1m", name="paid").to("out")
    specs = {
        s.name: s.partitions
        for s in internal_topics(topology.plan(), Settings.load(), {"orders": 4, "numbers": 7, "out": 1})
    }
    found = [specs[f"app-{name}-repartition"] for name in ("one", "two", "three")]
    assert (found, specs["app-paid-this-store-changelog"]) == ([between] * 3, between)


def test_should_name_the_missing_source_on_which_the_count_of_a_repartition_topic_depends() -> None:
    topology = Topology("app")
    moved = topology.stream("a", schema="x STRING", key="x").repartition("x", name="one")
    moved.group_by_key().count(store="n").to("out")
    with pytest.raises(PreflightFailed, match="source topics a do not exist, and the partition counts of app-one-rep"):
        internal_topics(topology.plan(), Settings.load(), {"out": 1})


def test_should_give_a_chain_of_repartition_topics_as_many_partitions_as_its_source() -> None:
    topology = Topology("app")
    stream = topology.stream("a", schema="x STRING, m INT", key="x").repartition("CAST(m AS STRING)", name="one")
    stream.repartition("x", name="two").group_by_key().count(store="n").to("out")
    specs = {s.name: s.partitions for s in internal_topics(topology.plan(), Settings.load(), {"a": 3, "out": 1})}
    assert {specs["app-one-repartition"], specs["app-two-repartition"], specs["app-n-changelog"]} == {3}
