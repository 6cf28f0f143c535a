"""The topics that an application knows by their ids, and the reaction to one that was created again."""

from __future__ import annotations

import pytest

from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.registry.reader import later_generations
from tidemark.registry.routing import routed
from tidemark.registry.topic_identities import (
    Identities,
    LostTopic,
    TopicUse,
    changed_topics,
    format_lost,
    lost_topics,
    topics_in_use,
)
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized


def a_plan():
    """Two sub-topologies with a topic between them, a logged store in each, and one without a changelog."""
    topology = Topology("app")
    clicks = topology.stream("clicks", schema="user STRING, page STRING", key="user")
    clicks.group_by_key().count(name="n", store="users").to("users-out")
    clicks.group_by("page").count(name="n", store="pages").to("pages-out")
    clicks.group_by_key().count(name="n", store=Materialized("lost", logging=False))
    return topology.plan()


PLAN = a_plan()
(BETWEEN,) = PLAN.repartition_topics
USES = topics_in_use(PLAN)
KNOWN = {topic: f"id of {topic}" for topic in USES}


def test_should_know_every_topic_that_is_read_or_written_and_its_use():
    assert USES == {
        "clicks": TopicUse.SOURCE, BETWEEN: TopicUse.REPARTITION, "app-commits": TopicUse.COMMITS,
        "app-users-changelog": TopicUse.CHANGELOG, "app-pages-changelog": TopicUse.CHANGELOG,
        "users-out": TopicUse.OUTPUT, "pages-out": TopicUse.OUTPUT, "app-dlq": TopicUse.OUTPUT,
        "app-events": TopicUse.OUTPUT,
    }  # fmt: skip


def test_should_know_the_topics_under_the_names_that_a_rescale_and_an_upgrade_have_given_them():
    uses = topics_in_use(routed(with_generations(PLAN, {"users": 2}), 1))
    assert {t for t, use in uses.items() if use is TopicUse.CHANGELOG} == {
        "app-users-changelog-2",
        "app-pages-changelog",
    }
    between = {t for t, use in uses.items() if use is TopicUse.REPARTITION}
    assert {"app-source-clicks-1-repartition", BETWEEN.replace("-repartition", "-1-repartition")} == between
    assert uses["clicks"] is TopicUse.SOURCE


def test_should_know_a_topic_that_is_its_tables_changelog_as_a_source():
    topology = Topology("app", optimised=True)
    topology.table("users", schema="id STRING, name STRING", key="id", store="kept").to("out")
    uses = topics_in_use(topology.plan())
    assert uses["users"] is TopicUse.SOURCE
    assert TopicUse.CHANGELOG not in uses.values()


@pytest.mark.parametrize("found_id", [None, "another"])
@pytest.mark.parametrize("topic", list(USES))
def test_should_report_every_topic_that_was_deleted_or_created_again(topic, found_id):
    found = {name: known for name, known in KNOWN.items() if name != topic} | ({topic: found_id} if found_id else {})
    expected = LostTopic(topic, USES[topic], KNOWN[topic], found_id)
    assert changed_topics(USES, KNOWN, found) == [expected]
    # An output that was made again is no fault of state.
    assert lost_topics(USES, KNOWN, found) == ([expected] if USES[topic].is_state else [])
    assert topic in expected.reason
    assert expected.remedy


def test_should_treat_a_topic_without_a_recorded_id_as_new():
    assert changed_topics(USES, {}, KNOWN) == []
    assert changed_topics({**USES, "more": TopicUse.SOURCE}, KNOWN, {**KNOWN, "more": "x"}) == []


def test_should_ask_only_for_topics_whose_loss_would_matter():
    asked = []

    def ask(topics):
        asked.extend(topics)
        return {topic: KNOWN[topic] for topic in topics if topic != "app-users-changelog"}

    assert list(Identities(KNOWN, ask).lost(PLAN)) == ["app-users-changelog"]
    assert sorted(asked) == sorted(topic for topic, use in USES.items() if use.is_state)
    assert Identities().lost(PLAN) == {}


def test_should_name_each_remedy_once():
    lost = [LostTopic(f"app-{name}-changelog", TopicUse.CHANGELOG, "a", None) for name in ("users", "pages")]
    said = format_lost("app", lost)
    assert "app-users-changelog was deleted" in said
    assert "app-pages-changelog was deleted" in said
    assert said.count("tidemark repair run NAME") == 1


def test_should_keep_the_ids_in_the_description():
    described = describe_state(PLAN, {"clicks": 2})
    assert described.topic_ids == {}
    with_ids = Description(**{**vars(described), "topic_ids": KNOWN})
    assert Description.from_bytes(with_ids.to_bytes()) == with_ids
    assert with_ids.keeps_the_same(described)


@pytest.mark.parametrize(
    ("topic", "is_trace"),
    [
        ("app-users-changelog-1", True), ("app-pages-changelog-12", True), ("app-users-changelog", False),
        ("app-users-changelog-0", False), ("app-others-changelog-1", False), ("xapp-users-changelog-1", False),
    ],
)  # fmt: skip
def test_should_find_the_changelogs_that_only_a_change_can_have_created(topic, is_trace):
    assert later_generations(PLAN, [topic, "clicks"]) == ([topic] if is_trace else [])
