"""The topics of an application: which there must be, creating the internal ones, verifying what exists (row B2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidemark.changelog.policy import changelog_policy, commits_config, dlq_config
from tidemark.errors import PreflightFailed
from tidemark.names import changelog_topic, commits_topic, dlq_topic
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

_AT_LEAST = {"retention.ms", "min.compaction.lag.ms", "delete.retention.ms"}


@dataclass(frozen=True)
class TopicSpec:
    """An internal topic as the application needs it."""

    name: str
    partitions: int
    config: Mapping[str, str]


def user_topics(plan: TopologyPlan) -> list[str]:
    """Sources and sinks: the user's own, which must exist before the start, as with Kafka Streams."""
    topics = [t for s in plan.subtopologies for t in (s.source.topic, *s.sink_topics)]
    return list(dict.fromkeys(topics))


def internal_topics(plan: TopologyPlan, settings: Settings, partitions: Mapping[str, int]) -> list[TopicSpec]:
    """What Tidemark creates itself; `partitions` are the sources'. One changelog partition per task."""
    app = plan.application_id
    specs = [
        TopicSpec(
            changelog_topic(app, aggregation.store.name),
            partitions[subtopology.source.topic],
            changelog_policy(aggregation.store).config(),
        )
        for subtopology in plan.subtopologies
        for aggregation in subtopology.aggregations
    ]
    tasks = max(partitions[s.source.topic] for s in plan.subtopologies)
    specs.append(TopicSpec(commits_topic(app), tasks, commits_config(settings)))
    specs.append(TopicSpec(dlq_topic(app), tasks, dlq_config()))
    return specs


def ensure_user_topics(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> list[str]:
    """Create missing sources and sinks with `num_partitions`; gives the names of those created."""
    existing = partition_counts(admin, settings)
    missing = [topic for topic in user_topics(plan) if topic not in existing]
    create_topics(admin, [TopicSpec(topic, settings.num_partitions, {}) for topic in missing], settings)
    return missing


def partition_counts(admin: AdminClient, settings: Settings) -> dict[str, int]:
    """Partitions of every topic of the cluster. Raises `PreflightFailed` when no broker answers."""
    try:
        metadata = admin.list_topics(timeout=settings.broker_timeout_ms / 1000)
    except KafkaException as error:
        raise PreflightFailed(
            f"cannot reach Kafka at {settings.bootstrap_servers}: {error.args[0].str()}; start it with `tidemark up`, or "
            "set TIDEMARK_BOOTSTRAP_SERVERS"
        ) from error
    return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}


def create_topics(admin: AdminClient, specs: Iterable[TopicSpec], settings: Settings) -> None:
    """Create; a topic that another process has just created is as good. Raises `PreflightFailed`."""
    wanted = [
        NewTopic(spec.name, spec.partitions, settings.replication_factor, config=dict(spec.config)) for spec in specs
    ]
    if not wanted:
        return
    for name, future in admin.create_topics(wanted, operation_timeout=settings.broker_timeout_ms / 1000).items():
        try:
            future.result()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            remedy = "set TIDEMARK_REPLICATION_FACTOR to at most the number of brokers, or add brokers"
            if reason.code() != KafkaError.INVALID_REPLICATION_FACTOR:
                remedy = "create it by hand, or give this user the right to"
            raise PreflightFailed(f"topic {name} cannot be created: {reason.str()}; {remedy}") from error


def ensure_internal_topics(
    plan: TopologyPlan, settings: Settings, admin: AdminClient, existing: Mapping[str, int]
) -> None:
    """Create what is missing, verify what is there. Raises `PreflightFailed` naming topic, found, needed, remedy."""
    specs = internal_topics(plan, settings, existing)
    create_topics(admin, [spec for spec in specs if spec.name not in existing], settings)
    present = [spec for spec in specs if spec.name in existing]
    configs = _configs(admin, [spec.name for spec in present], settings)
    for spec in present:
        if existing[spec.name] != spec.partitions:
            raise PreflightFailed(
                f"topic {spec.name} has {existing[spec.name]} partitions, its tasks need {spec.partitions}: the source's "
                "partition count has changed; give it back its old one, or start under another application id"
            )
        for key, needed in spec.config.items():
            found = configs[spec.name].get(key, "")
            if not _is_enough(key, found, needed):
                raise PreflightFailed(
                    f"topic {spec.name} has {key}={found}, the application needs {needed}; set it with "
                    f"`tidemark kafka configs --alter --entity-type topics --entity-name {spec.name} "
                    f"--add-config {key}=[{needed}]`"
                )


def _is_enough(key: str, found: str, needed: str) -> bool:
    if key in _AT_LEAST:
        return int(found) < 0 or int(found) >= int(needed)
    return set(found.split(",")) == set(needed.split(","))


def _configs(admin: AdminClient, topics: list[str], settings: Settings) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=settings.broker_timeout_ms / 1000)
    return {resource.name: {k: e.value for k, e in future.result().items()} for resource, future in futures.items()}
