"""The input that waits in the sources of one instance's tasks, read from the brokers."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from tidemark.checks.liveness import Input
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets, committed_offsets, retry_until_stable
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


def waiting_input(plan: TopologyPlan, settings: Settings, leads: Collection[TopicPartition]) -> Input:
    """Return the waiting input of the tasks that follow these partitions of lead topics. Blocks for some round trips.

    `plan` is the one that runs. Counts up to the last stable offset, as no instance can commit what an open transaction
    hides. Raises `OutcomeUnknown` if the broker does not answer.
    """
    places = sorted(
        TopicPartition(topic, lead.partition)
        for lead in set(leads)
        for subtopology in plan.subtopologies
        if subtopology.lead.topic == lead.topic
        for topic in subtopology.source_topics
    )
    if not places:
        return Input(0, 0)
    timeout_s = settings.broker_timeout_ms / 1000
    ends = EndOffsets(AdminClient(librdkafka_config(settings)), timeout_s)
    low, stable = ends.beginnings(places), ends.stable(places)
    group = plan.application_id
    found = retry_until_stable(
        lambda: committed_offsets(librdkafka_config(settings), group, places, timeout_s), group, timeout_s
    )
    committed = {place: found[place].offset if place in found else low[place] for place in places}
    waiting = sum(max(0, stable[place] - committed[place]) for place in places)
    return Input(waiting, sum(committed.values()))
