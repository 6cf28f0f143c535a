"""The input that waits in the sources of one instance's tasks, read from the brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka.admin import AdminClient

from tidemark.checks.liveness import Input
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets, committed_offsets, retry_until_stable
from tidemark.names import TopicPartition
from tidemark.settings import Settings


def waiting_input(
    application_id: str, sources: Sequence[Sequence[str]], settings: Settings, leads: Collection[TopicPartition]
) -> Input:
    """Return the waiting input of the tasks that follow these partitions of lead topics. Blocks for some round trips.

    `sources` are the topics that each sub-topology of the running version reads, the lead topic first. Counts up to the last
    stable offset, as no instance can commit what an open transaction hides. Raises `OutcomeUnknown` if the broker does not
    answer, and `ValueError` if no sub-topology follows one of the leads: then nothing is known of its input.
    """
    unknown = {lead.topic for lead in leads} - {topics[0] for topics in sources}
    if unknown:
        raise ValueError(f"no sub-topology of {application_id} has the lead topic {', '.join(sorted(unknown))}")
    places = sorted(
        TopicPartition(topic, lead.partition)
        for lead in set(leads)
        for topics in sources
        if topics[0] == lead.topic
        for topic in topics
    )
    if not places:
        return Input(0, 0)
    timeout_s = settings.broker_timeout_ms / 1000
    ends = EndOffsets(AdminClient(librdkafka_config(settings)), timeout_s)
    low, stable = ends.beginnings(places), ends.stable(places)
    found = retry_until_stable(
        lambda: committed_offsets(librdkafka_config(settings), application_id, places, timeout_s),
        application_id,
        timeout_s,
    )
    committed = {place: found[place].offset if place in found else low[place] for place in places}
    waiting = sum(max(0, stable[place] - committed[place]) for place in places)
    return Input(waiting, sum(committed.values()))
