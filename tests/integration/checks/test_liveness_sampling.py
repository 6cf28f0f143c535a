"""The unread input of an instance, on a real broker: only its own partitions, and only readable records."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.counting import PARTITIONS, counted_plan

from tidemark.checks.liveness import Input
from tidemark.checks.liveness_sampling import waiting_input
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind, commit_record
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import TopicSpec, create_topics
from tidemark.names import TaskId, TopicPartition, commits_topic
from tidemark.processes import wait_until
from tidemark.stream_times import StreamTimes

pytestmark = pytest.mark.broker


@pytest.fixture
def plan(settings, admin, unique):
    """A count over two partitions of five records each; nothing is committed."""
    plan = counted_plan(settings, admin, unique("app"), 5)
    create_topics(admin, [TopicSpec(commits_topic(plan.application_id), PARTITIONS, {})], settings)
    return plan


def commit(settings, plan, offsets):
    topic = plan.subtopologies[0].lead.topic
    consumer = Consumer({**librdkafka_config(settings), "group.id": plan.application_id})
    consumer.commit(offsets=[ClientPartition(topic, p, offset) for p, offset in offsets.items()], asynchronous=False)
    consumer.close()


def record(settings, plan, partition, offset):
    """The last commit record of a task, without offsets of the group: it has deleted them."""
    (topic,) = plan.subtopologies[0].source_topics
    task = TaskId(0, partition)
    last = commit_record(
        CommitKind.BATCH, plan.application_id, plan.version, task, 3, wall_clock_ms(),
        spans={topic: (0, offset)}, stream_times=StreamTimes.none(), changelogs={}, ends_before={},
    )  # fmt: skip
    producer = Producer(librdkafka_config(settings))
    producer.produce(commits_topic(plan.application_id), last.to_bytes(), str(task).encode(), partition=partition)
    assert producer.flush(60) == 0


def waiting(plan, settings, leads):
    return waiting_input(plan.application_id, [one.source_topics for one in plan.subtopologies], settings, leads)


def test_should_not_take_the_partitions_of_an_unknown_lead_for_no_input(settings, plan):
    lead = TopicPartition(plan.subtopologies[0].lead.topic, 0)
    with pytest.raises(ValueError, match="has the lead topic renamed"):
        waiting(plan, settings, [lead, TopicPartition("renamed", 0)])


def test_should_count_the_unread_input_of_its_own_partitions(settings, plan):
    zero, one = (TopicPartition(plan.subtopologies[0].lead.topic, number) for number in (0, 1))
    assert waiting(plan, settings, [zero, one]) == Input(10, 0)
    commit(settings, plan, {0: 5, 1: 2})
    assert waiting(plan, settings, [zero, one]) == Input(3, 7)
    assert waiting(plan, settings, [zero]) == Input(0, 5)
    assert waiting(plan, settings, []) == Input(0, 0)


def test_should_count_from_the_last_commit_record_where_the_group_has_no_offset(settings, plan):
    zero, one = (TopicPartition(plan.subtopologies[0].lead.topic, number) for number in (0, 1))
    record(settings, plan, 0, 5)
    assert waiting(plan, settings, [zero]) == Input(0, 5)
    assert waiting(plan, settings, [zero, one]) == Input(5, 5)
    # The group's own offset counts, whatever the record says.
    commit(settings, plan, {0: 4})
    assert waiting(plan, settings, [zero]) == Input(1, 4)


def test_should_not_count_what_an_open_transaction_hides(settings, plan, unique):
    zero = TopicPartition(plan.subtopologies[0].lead.topic, 0)
    commit(settings, plan, {0: 5})
    producer = Producer({**librdkafka_config(settings), "transactional.id": unique("open")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(zero.topic, b"{}", b"k", partition=0)
    assert producer.flush(60) == 0
    assert waiting(plan, settings, [zero]) == Input(0, 5)
    producer.commit_transaction(60)
    # Its marker comes later than the answer.
    assert wait_until(lambda: waiting(plan, settings, [zero]).waiting >= 1, 60)
