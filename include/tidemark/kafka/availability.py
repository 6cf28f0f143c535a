"""Broker outages that keep an application from running: no answer, partitions without a leader, too few replicas in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, PartitionMetadata  # type: ignore[attr-defined]

from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import short_timeout_s, topic_configs
from tidemark.kafka.topics import written_topics
from tidemark.names import TopicPartition, first_named, transactional_id
from tidemark.settings import Settings
from tidemark.topology.plan import Guarantee, TopologyPlan

_ANSWER_S = 3.0
_NAMED = 5
_GROUPS, _TRANSACTIONS = "__consumer_offsets", "__transaction_state"
_NOT_LET_IN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})


@dataclass(frozen=True)
class Outage:
    """Brokers cannot serve an application, for the reason `why`. If `is_partial`, some of them still answer."""

    why: str
    is_partial: bool


def needed_topics(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the topics without which an application cannot run: its sources, and what its commits need."""
    sources = (topic for s in plan.subtopologies for topic in s.source_topics)
    return tuple(sorted({*sources, *needed_by_commits(plan)}))


def needed_by_commits(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the topics that the commits of an application write to, and that of transactions if it uses them."""
    transactions = (_TRANSACTIONS,) if plan.guarantee is Guarantee.EXACTLY_ONCE else ()
    return (*written_topics(plan), *transactions)


def coordinator_partition(name: str, partitions: int) -> int:
    """Return the partition whose leader coordinates a group or a transactional id.

    It is the absolute value of Java's `String.hashCode`, or 0 for the smallest one, modulo the number of partitions.
    """
    found = 0
    for character in name:
        found = (31 * found + ord(character)) & 0xFFFFFFFF
    return min(found, 0x100000000 - found) % 0x80000000 % partitions


def find_outage(settings: Settings, application_id: str, instance: int, topics: Collection[str]) -> Outage | None:
    """Look once for an outage that affects `topics` or the coordinators of an instance; return None if there is none.

    Of the topic of transactions only the partition counts that coordinates this instance's, and only if `topics` name it.
    Blocks, for up to three seconds if no broker answers. A broker that refuses the user, or whose certificate is not
    trusted, is not an outage, as waiting does not help. Raises `InvalidSettings`.
    """
    refused: list[KafkaError] = []
    # A new client for each look: after failed connections, librdkafka waits longer and longer before it tries again.
    config: dict[str, Any] = {**librdkafka_config(settings), "error_cb": refused.append}
    client = AdminClient(config)
    try:
        metadata = client.list_topics(timeout=short_timeout_s(settings, _ANSWER_S))
    except KafkaException as error:
        client.poll(0)
        if any(said.code() in _NOT_LET_IN for said in refused):
            return None
        return Outage(f"no broker answers at {settings.bootstrap_servers}: {error.args[0].str()}", is_partial=False)
    needed = [
        TopicPartition(topic, number)
        for topic in sorted({*topics} & metadata.topics.keys() - {_TRANSACTIONS})
        for number in metadata.topics[topic].partitions
    ]
    needed += _coordinators(metadata, application_id, instance, is_transactional=_TRANSACTIONS in topics)
    leaderless = [str(place) for place in needed if _described(metadata, place).leader < 0]
    if leaderless:
        return Outage(f"no broker leads {first_named(leaderless, _NAMED, ' partitions')}", is_partial=True)
    short = list(_short_of_replicas(client, settings, metadata, needed))
    if short:
        named = first_named(short, _NAMED, " partitions")
        return Outage(f"fewer replicas than min.insync.replicas are in sync of {named}", is_partial=True)
    return None


def _coordinators(
    metadata: ClusterMetadata, application_id: str, instance: int, *, is_transactional: bool
) -> Iterator[TopicPartition]:
    """Yield the partitions whose leaders coordinate the group and the transactions of an instance."""
    names = {_GROUPS: application_id}
    if is_transactional:
        names[_TRANSACTIONS] = transactional_id(application_id, instance)
    for topic, name in names.items():
        found = metadata.topics.get(topic)
        if found is not None and found.partitions:
            yield TopicPartition(topic, coordinator_partition(name, len(found.partitions)))


def _described(metadata: ClusterMetadata, place: TopicPartition) -> PartitionMetadata:
    return metadata.topics[place.topic].partitions[place.partition]


def _short_of_replicas(
    client: AdminClient, settings: Settings, metadata: ClusterMetadata, needed: Sequence[TopicPartition]
) -> Iterator[str]:
    """Yield the partitions that accept no record with acks=all. Reads settings only of topics with replicas out of sync."""
    found = {place: _described(metadata, place) for place in needed}
    missing = {place: len(each.isrs) for place, each in found.items() if len(each.isrs) < len(each.replicas)}
    try:
        configs: Mapping[str, Mapping[str, str]] = topic_configs(client, sorted({p.topic for p in missing}), settings)
    except TidemarkError:
        return  # The user may not read them, or a broker has just gone away: the next look decides.
    for place, in_sync in missing.items():
        if in_sync < int(configs[place.topic].get("min.insync.replicas", 1)):
            yield str(place)
