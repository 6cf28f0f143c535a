"""Deletes the first records of a changelog, as a person may do by mistake: Kafka allows that only if the topic may delete."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.kafka.cluster import topic_configs
from tidemark.names import TopicPartition
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.processes import wait_until
from tidemark.settings import Settings

_POLICY = "cleanup.policy"


def purge(admin: AdminClient, settings: Settings, before: Mapping[TopicPartition, int]) -> None:
    """Delete every record before these offsets, or all where it is -1; the topics' settings are as before. Blocks."""
    topics = sorted({place.topic for place in before})
    found = {name: config[_POLICY] for name, config in topic_configs(admin, topics, settings).items()}
    open_ = [TopicChange(name, _POLICY, policy, "delete") for name, policy in found.items()]
    apply_changes(open_, settings, admin)
    try:
        for place, offset in before.items():
            asked = ClientPartition(place.topic, place.partition, offset)
            assert wait_until(partial(_is_deleted, admin, asked), 60), f"{place} may not be deleted"
    finally:
        apply_changes([TopicChange(name, _POLICY, "delete", policy) for name, policy in found.items()], settings, admin)


def _is_deleted(admin: AdminClient, place: ClientPartition) -> bool:
    """Until the partition's leader has heard of the new `cleanup.policy`, the old one forbids it."""
    try:
        admin.delete_records([place])[place].result(60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    return True
