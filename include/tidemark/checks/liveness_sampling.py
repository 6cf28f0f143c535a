"""The input that waits in the sources of one instance's tasks, read from the brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka.admin import AdminClient

from tidemark.checks.liveness import Input
from tidemark.commit.history import last_commit_records
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.offsets import EndOffsets, committed_offsets, retry_until_stable
from tidemark.names import TaskId, TopicPartition
from tidemark.settings import Settings


def waiting_input(
    application_id: str, sources: Sequence[Sequence[str]], settings: Settings, leads: Collection[TopicPartition]
) -> Input:
    """Return the waiting input of the tasks that follow these partitions of lead topics. Blocks for some round trips.

    `sources` are the topics that each sub-topology of the running version reads, the lead topic first. Counts up to the last
    stable offset, as no instance can commit what an open transaction hides. Counts from the last commit record of a task, or
    from the low watermark if it has none, where the group has no offset. Raises `OutcomeUnknown` if the broker does not
    answer, and `ValueError` if no sub-topology follows one of the leads: then nothing is known of its input.
    """
    unknown = {lead.topic for lead in leads} - {topics[0] for topics in sources}
    if unknown:
        raise ValueError(f"no sub-topology of {application_id} has the lead topic {', '.join(sorted(unknown))}")
    tasks = {
        TopicPartition(topic, lead.partition): TaskId(index, lead.partition)
        for lead in leads
        for index, topics in enumerate(sources)
        if topics[0] == lead.topic
        for topic in topics
    }
    if not tasks:
        return Input(0, 0)
    places = sorted(tasks)
    timeout_s = settings.broker_timeout_ms / 1000
    ends = EndOffsets(AdminClient(librdkafka_config(settings)), timeout_s)
    low, stable = ends.beginnings(places), ends.stable(places)
    found = retry_until_stable(
        lambda: committed_offsets(librdkafka_config(settings), application_id, places, timeout_s),
        application_id,
        timeout_s,
    )
    committed = {place: found[place].offset for place in places if place in found}
    if missing := {place: tasks[place] for place in places if place not in found}:
        # A start continues from the record of a task whose offsets the brokers have deleted (see `docs/start-plan.md`).
        records = last_commit_records(
            librdkafka_config(settings),
            ends,
            application_id,
            set(missing.values()),
            stalled_after_s=stalled_after(settings),
        )
        for place, task in missing.items():
            committed[place] = records[task].end_offsets[place.topic] if task in records else low[place]
    waiting = sum(max(0, stable[place] - committed[place]) for place in places)
    return Input(waiting, sum(committed.values()))
