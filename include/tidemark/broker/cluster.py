"""What a cluster says of its topics: partitions, replicas, settings, leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ResourceType,
)

from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.local.processes import wait_until
from tidemark.settings import Settings


@dataclass(frozen=True)
class TopicFacts:
    """A topic as it is. `replicas` is the smallest number among its partitions."""

    partitions: int
    replicas: int


def describe_topics(admin: AdminClient, settings: Settings) -> dict[str, TopicFacts]:
    """Every topic of the cluster. Blocks for one round trip, for `broker_timeout_ms` when nobody answers.

    Raises `OutcomeUnknown`, for a broker that is away may come back (rule 22).
    """
    return {
        name: TopicFacts(len(topic.partitions), min((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in _metadata(admin, settings).topics.items()
        if topic.error is None
    }


def topic_configs(admin: AdminClient, topics: Sequence[str], settings: Settings) -> dict[str, dict[str, str]]:
    """Every setting of these topics, defaults included. Blocks for one round trip. Raises `PreflightFailed`."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=settings.broker_timeout_ms / 1000)
    try:
        return {
            resource.name: {key: entry.value for key, entry in future.result().items()}
            for resource, future in futures.items()
        }
    except KafkaException as error:
        raise PreflightFailed(
            f"the settings of topics {', '.join(topics)} cannot be read: {error.args[0].str()}; give this user the "
            "right to describe them"
        ) from error


def wait_until_led(admin: AdminClient, topics: Sequence[str], settings: Settings) -> None:
    """Block until every partition of these topics has a leader: a created topic is not everywhere at once.

    Raises `PreflightFailed` after `broker_timeout_ms`.
    """

    def led() -> bool:
        metadata = _metadata(admin, settings)
        return all(_is_led(metadata, topic) for topic in topics)

    if not wait_until(led, settings.broker_timeout_ms / 1000):
        raise PreflightFailed(
            f"topics {', '.join(topics)} have partitions without a leader after {settings.broker_timeout_ms} ms; look "
            "at the brokers' logs, or raise TIDEMARK_BROKER_TIMEOUT_MS"
        )


def _is_led(metadata: ClusterMetadata, topic: str) -> bool:
    found = metadata.topics.get(topic)
    return found is not None and bool(found.partitions) and all(p.leader >= 0 for p in found.partitions.values())


def _metadata(admin: AdminClient, settings: Settings) -> ClusterMetadata:
    try:
        return admin.list_topics(timeout=settings.broker_timeout_ms / 1000)
    except KafkaException as error:
        raise OutcomeUnknown(
            f"cannot reach Kafka at {settings.bootstrap_servers}: {error.args[0].str()}; start it with `tidemark up`, or "
            "set TIDEMARK_BOOTSTRAP_SERVERS"
        ) from error
