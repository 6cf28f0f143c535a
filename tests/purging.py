"""Deleting the beginning of a changelog, as a person does by mistake: Kafka takes that from topics that may delete alone."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.broker.cluster import topic_configs
from tidemark.broker.topic_changes import TopicChange, apply_changes
from tidemark.names import TopicPartition
from tidemark.settings import Settings

_POLICY = "cleanup.policy"


def purge(admin: AdminClient, settings: Settings, before: Mapping[TopicPartition, int]) -> None:
    """Delete every record before these offsets; the topics' settings are as before afterwards. Blocks."""
    topics = sorted({place.topic for place in before})
    found = {name: config[_POLICY] for name, config in topic_configs(admin, topics, settings).items()}
    open_ = [TopicChange(name, _POLICY, policy, "delete") for name, policy in found.items()]
    apply_changes(open_, settings, admin)
    try:
        asked = [ClientPartition(place.topic, place.partition, offset) for place, offset in before.items()]
        for deleted in admin.delete_records(asked).values():
            deleted.result(20)
    finally:
        apply_changes([TopicChange(name, _POLICY, "delete", policy) for name, policy in found.items()], settings, admin)
