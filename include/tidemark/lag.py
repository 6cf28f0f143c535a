"""Consumer lag of an application, as any Kafka tool would compute it from the group's committed offsets (row A6)."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.broker.offsets import EndOffsets
from tidemark.errors import PreflightFailed
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class PartitionLag:
    """One source partition. Offsets are next offsets; None where nothing was ever committed, or nobody owns it."""

    partition: TopicPartition
    committed_offset: int | None
    end_offset: int
    member: str | None

    @property
    def lag_offsets(self) -> int | None:
        """Distance in offsets, which transaction markers and aborted records count in: not a number of records."""
        return None if self.committed_offset is None else self.end_offset - self.committed_offset


def lag_of(
    plan: TopologyPlan, partitions: dict[str, int], admin: AdminClient, settings: Settings
) -> list[PartitionLag]:
    """Lag of every source partition, sorted. Blocks for three round trips; raises `PreflightFailed`."""
    sources = sorted({s.source.topic for s in plan.subtopologies})
    places = [TopicPartition(topic, p) for topic in sources for p in range(partitions.get(topic, 0))]
    timeout_s = settings.broker_timeout_ms / 1000
    ends = EndOffsets(admin, timeout_s).of(places)
    group = plan.application_id
    asked = ConsumerGroupTopicPartitions(group, [ClientPartition(p.topic, p.partition) for p in places])
    try:
        offsets = admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=timeout_s)
        committed = {
            TopicPartition(found.topic, found.partition): found.offset
            for found in offsets[group].result().topic_partitions
            if found.offset >= 0
        }
        described = admin.describe_consumer_groups([group], request_timeout=timeout_s)[group].result()
    except KafkaException as error:
        raise PreflightFailed(f"group {group} cannot be described: {error.args[0].str()}") from error
    owners = {
        TopicPartition(place.topic, place.partition): member.group_instance_id or member.member_id
        for member in described.members
        for place in (member.assignment.topic_partitions if member.assignment else [])
    }
    return [PartitionLag(place, committed.get(place), ends[place], owners.get(place)) for place in places]
