"""The durability check on one real broker, and on three of which one is stopped."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.counting import CountingApp, counting
from tests.support.durability_rehearsal import refusal
from tests.support.truth.topics import read_all

from tidemark.checks.durability_sampling import check_durability
from tidemark.errors import PreflightFailed
from tidemark.kafka.cluster import describe_replicas, topic_configs
from tidemark.kafka.topics import ensure_user_topics
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.topology.plan import Acks
from tidemark.verdict import Verdict, worst

pytestmark = pytest.mark.broker


def seen(plan, settings):
    return {finding.subject: finding for finding in check_durability(plan, settings)}


def seen_when(plan, settings, condition):
    """The first look that meets the condition. The next may ask a broker that knows less."""
    looks = []

    def is_met():
        looks.append(seen(plan, settings))
        return condition(looks[-1])

    assert wait_until(is_met, 60), looks[-1]
    return looks[-1]


def test_should_warn_and_not_fail_when_there_is_a_single_broker(settings, admin, unique):
    app = CountingApp(settings, admin, unique("durable"))
    running = []

    def look(_point):
        if not running:
            running.append(seen(app.plan, app.settings))

    app.feed(10)
    app.run(look)
    found = running[0]
    assert worst(found.values()) is Verdict.WARNING
    assert (found["producers"].verdict, found["producers"].evidence["acks"]) == (Verdict.OK, {"0": "all"})
    changelog = found[f"{app.name}-n-changelog"]
    assert (changelog.verdict, changelog.evidence["role"], changelog.evidence["partitions"]) == (
        Verdict.WARNING, "internal", 2,
    )  # fmt: skip
    assert {found[topic].evidence["role"] for topic in ("__consumer_offsets", "__transaction_state")} == {"kafka's own"}
    lost = found["one broker down"]
    assert lost.verdict is Verdict.WARNING
    assert f"{app.name}-n-changelog[1]" in lost.evidence["gone_with_its_disk"]
    # When it has ended, nobody says what it asked for.
    assert seen(app.plan, app.settings)["producers"].verdict is Verdict.NOT_ENOUGH_EVIDENCE


def weaker_counting(name):
    """The counts, whose outputs wait for their leader alone."""
    topology = Topology(name, guarantee="at_least_once", acks="1")
    records = topology.stream(f"{name}-in", schema="id STRING")
    records.group_by_key().count(name="n", store="n").to(f"{name}-out")
    return topology


def test_should_fail_when_an_instance_waits_for_fewer_replicas_than_the_topology_states(settings, admin, unique):
    app = CountingApp(settings, admin, unique("weaker"), topology=weaker_counting)
    stated = {"1": app.plan, "all": replace(app.plan, acks=Acks.ALL), "0": replace(app.plan, acks=Acks.NONE)}
    running = {}

    def look(_point):
        if not running:
            running.update({acks: seen(plan, app.settings) for acks, plan in stated.items()})

    app.feed(10)
    app.run(look)
    assert {acks: found["producers"].verdict for acks, found in running.items()} == {
        "1": Verdict.OK, "all": Verdict.FAILED, "0": Verdict.WARNING,
    }  # fmt: skip
    assert "states acks=all, and instances 0 do not wait for that" in running["all"]["producers"].message
    assert running["all"]["producers"].evidence["acks"] == {"0": "1"}
    assert running["1"][f"{app.name}-out"].evidence["acks"] == "1"
    assert running["1"][f"{app.name}-n-changelog"].evidence["acks"] == "all"
    # What it has written is whole: no broker was lost.
    rows = read_all(settings.bootstrap_servers, [f"{app.name}-out"]).values()
    assert {row.key.decode(): json.loads(row.value)["n"] for each in rows for row in each} == app.expected


def test_should_not_require_min_insync_replicas_for_outputs_that_do_not_wait_for_them(
    cluster, unique, tmp_path, alter_topic_of
):
    settings = Settings.load(bootstrap_servers=cluster.bootstrap, var_dir=tmp_path, num_partitions=1)
    plan = weaker_counting(unique("thin")).plan()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    out = f"{plan.application_id}-out"
    ensure_user_topics(plan, settings, admin)
    alter_topic_of(admin)(out, min_insync_replicas="4")
    assert wait_until(lambda: topic_configs(admin, [out], settings)[out]["min.insync.replicas"] == "4", 60)
    said = f"topic {out} has 3 replicas and min.insync.replicas=4"
    assert wait_until(lambda: said in refusal(replace(plan, acks=Acks.ALL), settings, admin), 60)
    assert wait_until(lambda: not refusal(plan, settings, admin), 60)


@pytest.fixture
def on_three(cluster, unique, tmp_path):
    """A plan whose topics have three replicas, and settings."""
    settings = Settings.load(bootstrap_servers=cluster.bootstrap, var_dir=tmp_path, num_partitions=1)
    plan = counting(unique("durable")).plan()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    ensure_user_topics(plan, settings, admin)
    assert wait_until(lambda: not refusal(plan, settings, admin), 60)
    return plan, settings, admin


def test_should_pass_when_the_tolerated_broker_failures_hold_and_refuse_when_they_do_not(
    cluster, unique, tmp_path, alter_topic_of
):
    settings = Settings.load(bootstrap_servers=cluster.bootstrap, var_dir=tmp_path, num_partitions=1)
    plan = replace(counting(unique("tolerating")).plan(), tolerated_broker_failures=1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    ensure_user_topics(plan, settings, admin)
    assert wait_until(lambda: not refusal(plan, settings, admin), 60)
    topics = [f"{plan.application_id}{suffix}" for suffix in ("-in", "-out", "-n-changelog", "-commits", "-dlq")]

    def committed():
        whole = seen(plan, settings)
        return {(whole[topic].verdict, whole[topic].evidence["tolerated_broker_failures"]) for topic in topics}

    # A replica that another test has stopped may be on its way back.
    assert wait_until(lambda: committed() == {(Verdict.OK, 1)}, 60)

    for thin in (topics[0], topics[2]):
        alter_topic_of(admin)(thin, min_insync_replicas="1")
        found = seen_when(plan, settings, lambda look, t=thin: look[t].evidence["min_in_sync"] == 1)[thin]
        assert found.verdict is Verdict.FAILED
        assert "survive the loss of 0 brokers, the topology asks for 1" in found.message
        said = re.compile(f"topic {thin} has .*min.insync.replicas=1")
        assert wait_until(lambda s=said: s.search(refusal(plan, settings, admin)), 60)
        alter_topic_of(admin)(thin, min_insync_replicas="2")
        assert wait_until(lambda t=thin: seen(plan, settings)[t].verdict is Verdict.OK, 60)
    assert wait_until(lambda: not refusal(plan, settings, admin), 60)


def test_should_fail_when_one_broker_is_not_enough_for_the_topology(settings, admin, unique):
    plan = replace(counting(unique("tolerating")).plan(), tolerated_broker_failures=1)
    with pytest.raises(PreflightFailed, match="lower `tolerated_broker_failures` of the topology"):
        ensure_user_topics(plan, settings, admin)


def test_should_name_a_stopped_replica_until_it_is_back(cluster, on_three, alter_topic_of):
    plan, settings, admin = on_three
    changelog, commits = f"{plan.application_id}-n-changelog", f"{plan.application_id}-commits"
    alter_topic_of(admin)(changelog, min_insync_replicas="3")

    def in_sync(count):
        topics = describe_replicas(admin, settings)[1]
        return all(len(topics[name][0].in_sync) == count for name in (changelog, commits))

    whole = seen_when(plan, settings, lambda look: "all of its 3 replicas must be in sync" in look[changelog].message)
    assert {whole[name].verdict for name in (commits, "transaction.state.log", "all brokers down")} == {Verdict.OK}

    cluster.stop_node(3)
    try:
        assert wait_until(lambda: in_sync(2), 60)
        short = seen_when(
            plan,
            settings,
            lambda look: (look[commits].verdict, look[changelog].verdict) == (Verdict.WARNING, Verdict.FAILED),
        )
        assert (
            "partitions 0 are under-replicated, if one more fails, writes are refused: start broker 3"
            in short[commits].message
        )
        assert short["one broker down"].verdict is Verdict.WARNING
        assert f"{commits}[0]" in short["one broker down"].evidence["writes_refused"]
        assert (
            "fewer than min.insync.replicas=3 in sync: writes are refused; start broker 3" in short[changelog].message
        )
        assert short[changelog].evidence["eligible_leaders"] == {"0": [3]}
    finally:
        cluster.start_node(3)
    alter_topic_of(admin)(changelog, min_insync_replicas="2")

    def is_mended():
        # Of "one broker down" it is every topic that the application stands on, and each comes back by itself.
        found = seen(plan, settings)
        return {found[name].verdict for name in (changelog, commits, "one broker down")} == {Verdict.OK}

    assert wait_until(is_mended, 60, every_s=1)
