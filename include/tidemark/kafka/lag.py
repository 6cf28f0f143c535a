"""Consumer lag of an application, computed from the group's committed offsets as any Kafka tool would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets, committed_offsets, describe_group, retry_until_stable
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class PartitionLag:
    """Lag of one source partition. Offsets are next offsets.

    `committed_offset` is None if nothing was ever committed, `member` if no member owns the
    partition's task. The group assigns only lead topics, so the owner is that of the same partition of the lead topic.
    """

    partition: TopicPartition
    committed_offset: int | None
    end_offset: int
    member: str | None

    @property
    def lag_offsets(self) -> int | None:
        """Return the lag in offsets. Transaction markers and aborted records count, so it is not a number of records."""
        return None if self.committed_offset is None else self.end_offset - self.committed_offset


def lag_of(
    plan: TopologyPlan,
    partitions: dict[str, int],
    admin: AdminClient,
    settings: Settings,
    asked: Sequence[TopicPartition] | None = None,
) -> list[PartitionLag]:
    """Return the lag of every source partition, or of those in `asked`, sorted.

    `partitions` is the cluster's partition count by topic.

    Blocks for a few round trips, and up to `broker_timeout_ms` while the group's coordinator is loading. Raises
    `PreflightFailed` for a source that does not exist, `OutcomeUnknown` for a group that cannot be read.
    """
    sources = sorted({topic for s in plan.subtopologies for topic in s.source_topics})
    for topic in sources:
        if topic not in partitions:
            raise PreflightFailed(
                f"source topic {topic} of {plan.application_id} does not exist at {settings.bootstrap_servers}; create "
                "it, or let `tidemark topics create NAME` do it"
            )
    places = [TopicPartition(topic, p) for topic in sources for p in range(partitions[topic])]
    places = places if asked is None else list(asked)
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000).of(places)
    group, timeout_s = plan.application_id, settings.broker_timeout_ms / 1000
    committed = retry_until_stable(lambda: _committed(group, places, settings), group, timeout_s)
    owners = retry_until_stable(lambda: _owners(group, admin, settings), group, timeout_s)
    lead = plan.lead_topics
    return [
        PartitionLag(
            place, committed.get(place), ends[place], owners.get(TopicPartition(lead[place.topic], place.partition))
        )
        for place in places
    ]


def _committed(group: str, places: list[TopicPartition], settings: Settings) -> dict[TopicPartition, int]:
    found = committed_offsets(librdkafka_config(settings), group, places, settings.broker_timeout_ms / 1000)
    return {place: answer.offset for place, answer in found.items()}


def _owners(group: str, admin: AdminClient, settings: Settings) -> dict[TopicPartition, str]:
    found = describe_group(settings, admin, group)
    return {
        TopicPartition(place.topic, place.partition): member.group_instance_id or member.member_id
        for member in found.members
        for place in (member.assignment.topic_partitions if member.assignment else [])
    }
