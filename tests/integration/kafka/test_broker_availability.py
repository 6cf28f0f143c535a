"""The detection of outages, on real brokers that are stopped and started again."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark.devstack.ports import free_port
from tidemark.kafka import availability
from tidemark.kafka.availability import find_outage
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(360)]


def test_should_say_that_no_broker_answers(settings):
    address = f"127.0.0.1:{free_port()}"
    outage = find_outage(settings.model_copy(update={"bootstrap_servers": address}), "app", 0, ())
    assert outage is not None
    assert not outage.is_partial
    assert address in outage.why


@pytest.fixture
def patient(monkeypatch):
    """A broker of a busy machine that needs longer than three seconds for its answer is not away."""
    monkeypatch.setattr(availability, "_ANSWER_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_should_find_no_outage_when_the_broker_answers(settings, create_topic, unique):
    assert find_outage(settings, "app", 0, [create_topic(unique("pulse")), "a topic that does not exist"]) is None


@pytest.mark.usefixtures("patient")
def test_should_name_partitions_without_a_leader_and_without_replicas_until_they_are_back(cluster, settings, unique):
    settings = settings.model_copy(update={"bootstrap_servers": cluster.bootstrap})
    app, single, doubled, foreign = unique("app"), unique("single"), unique("doubled"), unique("foreign")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    two = {"min.insync.replicas": "2"}
    topics = [
        NewTopic(single, 2, replica_assignment=[[3], [1]]),
        NewTopic(f"{app}-changelog", 1, replica_assignment=[[3]]),
        NewTopic(doubled, 1, replica_assignment=[[1, 3]], config=two),
        NewTopic(foreign, 1, replica_assignment=[[3]]),
    ]
    for made in admin.create_topics(topics).values():
        made.result(60)
    seen = []

    def found(topics):
        seen.append(find_outage(settings, app, 0, topics))
        return "" if seen[-1] is None else seen[-1].why

    assert wait_until(lambda: not found([single, doubled]), 60), seen[-1]
    cluster.kill_node(3)
    try:
        # A broker may know of one partition before it knows of the other.
        changelog = f"{app}-changelog"
        assert wait_until(lambda: found([single, changelog]) == f"no broker leads {changelog}[0], {single}[0]", 60), (
            seen[-1]
        )
        assert seen[-1].is_partial
        short = f"are in sync of {doubled}[0]"
        assert wait_until(lambda: found([doubled]).endswith(short), 60), seen[-1]
        assert wait_until(lambda: not found([]), 60), "what others need is nothing to this application"
    finally:
        cluster.start_node(3)
    assert wait_until(lambda: not found([single, doubled]), 60), seen[-1]
