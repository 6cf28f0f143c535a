"""Profiles and overrides of a store's changelog, changed later on a running topic."""

from __future__ import annotations

import pytest

from tidemark.kafka.preflight import preflight
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import ensure_user_topics
from tidemark.operations.topic_changes import apply_changes, plan_changes
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = pytest.mark.broker


def counting(app: str, store: Materialized):
    topology = Topology(app)
    topology.stream(f"{app}-in", schema="id STRING", key="id").group_by_key().count(store=store).to(f"{app}-out")
    return topology.plan()


def test_should_show_the_difference_of_a_new_profile_and_set_it(settings, admin, unique):
    app = unique("profiled")
    before = counting(app, Materialized("n"))
    ensure_user_topics(before, settings, admin)
    preflight(before, settings, admin)
    assert plan_changes(before, settings, admin) == []
    after = counting(app, Materialized("n", profile="aggressive_compaction", topic_config={"segment.ms": "300000"}))
    changes = {change.setting: (change.found, change.wanted) for change in plan_changes(after, settings, admin)}
    assert changes["segment.ms"] == ("604800000", "300000")
    assert changes["min.cleanable.dirty.ratio"] == ("0.5", "0.1")
    assert {change.topic for change in plan_changes(after, settings, admin)} == {f"{app}-n-changelog"}
    apply_changes(plan_changes(after, settings, admin), settings, admin)
    assert plan_changes(after, settings, admin) == []
    preflight(after, settings, admin)


def test_should_prefer_an_override_to_its_profile():
    plan = counting("app", Materialized("n", profile="aggressive_compaction", topic_config={"segment.ms": "300000"}))
    config = changelog_policies(plan)["n"].config()
    assert (config["segment.ms"], config["min.cleanable.dirty.ratio"]) == ("300000", "0.1")
