"""Requests to a controller that has gone: Kafka names any broker that it takes to be alive, also one that was just killed."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tidemark.kafka.acls import Acl, verify_granted
from tidemark.kafka.cluster import topic_configs, topic_ids
from tidemark.kafka.topics import TopicSpec, create_topics, grow_topics, partition_counts
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

GONE = 3


def taking_for_controller(topic, node: int) -> AdminClient:
    """A client that sends its requests to this node from now on."""
    client = topic.client()
    assert wait_until(lambda: client.list_topics(timeout=10).controller_id == node, 60)
    return client


def test_should_find_another_controller_when_the_known_one_has_gone(replicated, settings, unique):
    settings = settings.model_copy(update={"broker_timeout_ms": 20_000})
    name, made = replicated.name, unique("made")
    replicated.await_leader(1)
    reading, describing, checking, creating, growing, changing = (
        taking_for_controller(replicated, GONE) for _ in range(6)
    )
    replicated.cluster.kill_node(GONE)
    assert list(topic_ids(reading, [name], settings)) == [name]
    assert topic_configs(describing, [name], settings)[name]["min.insync.replicas"] == "2"
    verify_granted([Acl("topic", name, "Read")], name, settings, checking, "`tidemark acls`")
    # Otherwise a new partition may be placed on the node that has gone.
    assert wait_until(lambda: len(replicated.client().list_topics(timeout=10).brokers) == 2, 60)
    create_topics(creating, [TopicSpec(made, 1, {})], settings)
    grow_topics(growing, [TopicSpec(made, 2, {})], settings)
    apply_changes([TopicChange(made, "retention.ms", "", "1234567")], settings, changing)

    def are_known() -> bool:
        # A request waits for the broker that answers it; another broker may know of the change later.
        configs = topic_configs(changing, [made], settings).get(made, {})
        return partition_counts(changing, settings).get(made) == 2 and configs.get("retention.ms") == "1234567"

    assert wait_until(are_known, 60)
