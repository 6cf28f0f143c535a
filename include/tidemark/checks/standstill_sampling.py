"""What waits in the sources of one instance's tasks, asked of the broker."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from tidemark.broker.clients import librdkafka_config
from tidemark.broker.offsets import EndOffsets, committed_offsets, settled
from tidemark.checks.standstill import Input
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


def waiting_input(plan: TopologyPlan, settings: Settings, leads: Collection[TopicPartition]) -> Input:
    """Of the tasks that follow these partitions of lead topics; `plan` is the one that runs. Blocks for some round trips.

    Counted up to the last stable offset: what an open transaction hides is no instance's to commit. Raises
    `OutcomeUnknown` where the broker does not say.
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
    found = settled(lambda: committed_offsets(librdkafka_config(settings), group, places, timeout_s), group, timeout_s)
    committed = {place: found[place].offset if place in found else low[place] for place in places}
    waiting = sum(max(0, stable[place] - committed[place]) for place in places)
    return Input(waiting, sum(committed.values()))
