"""Facts that a cluster reports about its topics and brokers: partitions, replicas, settings, leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ResourceType,
    TopicDescription,
)

from tidemark.errors import BrokersAway, PreflightFailed
from tidemark.kafka.admin_errors import failed_request
from tidemark.kafka.attempts import ask_controller
from tidemark.processes import wait_until
from tidemark.settings import Settings

OFFSET_METADATA_BYTES = 4096
"""The default of the broker setting `offset.metadata.max.bytes`."""


def brokers_answer(
    client_config: Mapping[str, Any], timeout_s: float, at_least: int = 1, cluster_id: str | None = None
) -> bool:
    """Return whether a broker answers within `timeout_s` and knows `at_least` brokers. Blocks until then.

    With `cluster_id`, the broker of another cluster does not count. A client that cannot be created, for example because a
    certificate is missing, has no answer.
    """
    # Nothing is logged: a broker that is away is an expected answer here.
    own = {"log_level": 0, "socket.timeout.ms": int(timeout_s * 1000)}
    try:
        metadata = AdminClient({**client_config, **own}).list_topics(timeout=timeout_s)
    except KafkaException:
        return False
    return len(metadata.brokers) >= at_least and cluster_id in {None, metadata.cluster_id}


def short_timeout_s(settings: Settings, longest_s: float) -> float:
    """Return the seconds to wait for brokers that may be away: `longest_s`, or `broker_timeout_ms` if that is shorter."""
    return min(longest_s, settings.broker_timeout_ms / 1000)


@dataclass(frozen=True)
class TopicFacts:
    """Partition and replica counts of an existing topic. `replicas` is the smallest number among its partitions."""

    partitions: int
    replicas: int


def describe_topics(admin: AdminClient, settings: Settings) -> dict[str, TopicFacts]:
    """Return every topic of the cluster. Blocks for one round trip, for `broker_timeout_ms` if no broker answers.

    Raises `BrokersAway` then, so that the caller tries again (see invariant: exit codes).
    """
    return {
        name: TopicFacts(len(topic.partitions), min((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in _metadata(admin, settings).topics.items()
        if topic.error is None
    }


def describe_known_topics(admin: AdminClient, topics: Sequence[str], settings: Settings) -> dict[str, TopicFacts]:
    """Return `describe_topics` once it contains `topics`: a broker may not know yet of topics that were just created.

    Blocks. Raises `PreflightFailed` after `broker_timeout_ms`.
    """
    found: dict[str, TopicFacts] = {}

    def known() -> bool:
        found.update(describe_topics(admin, settings))
        return all(topic in found for topic in topics)

    if not wait_until(known, settings.broker_timeout_ms / 1000):
        raise PreflightFailed(
            f"topics {', '.join(topic for topic in topics if topic not in found)} were created but are not known to every "
            f"broker after {settings.broker_timeout_ms} ms; look at the brokers' logs, or raise TIDEMARK_BROKER_TIMEOUT_MS"
        )
    return found


def topic_configs(admin: AdminClient, topics: Sequence[str], settings: Settings) -> dict[str, dict[str, str]]:
    """Return every setting of these topics, defaults included. Blocks for one round trip.

    Asks again for up to `broker_timeout_ms` if a topic does not exist. Raises `PreflightFailed` if a topic does not exist or
    this user may not see it, `OutcomeUnknown` if the brokers do not answer in time.
    """
    if not topics:
        return {}
    timeout_s = settings.broker_timeout_ms / 1000
    answers: list[dict[str, dict[str, str]]] = []
    last: list[KafkaException] = []

    def answered() -> bool:
        try:
            answers.append(ask_controller(admin, timeout_s, lambda seconds: _configs(admin, topics, seconds)))
        except KafkaException as error:
            last.append(error)
            # The topic may have just been created, as in `describe_known_topics`.
            return bool(error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART)
        return True

    wait_until(answered, timeout_s)
    if not answers:
        what = f"failed to read the settings of topics {', '.join(topics)}"
        raise failed_request(what, last[-1], "give this user the right to describe them") from last[-1]
    return answers[0]


def _configs(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=timeout_s)
    found: dict[str, dict[str, str]] = {}
    denied: list[str] = []
    for resource, future in futures.items():
        try:
            found[resource.name] = {key: entry.value for key, entry in future.result().items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            denied.append(f"DescribeConfigs on topic {resource.name}")
    _require_granted(denied)
    return found


def _require_granted(denied: Sequence[str]) -> None:
    """Raise `PreflightFailed` if there are operations that this user is denied."""
    if denied:
        raise PreflightFailed(
            f"this user lacks permissions: {', '.join(denied)}; grant the ACLs that `tidemark acls NAME --principal …` prints, "
            "for a check with `--audits`"
        )


_KNOWN_EVERYWHERE_S = 2.0
"""The time that a broker may take to learn of a topic that was created through another broker."""


def topic_ids(admin: AdminClient, topics: Collection[str], settings: Settings) -> dict[str, str]:
    """Return the id that Kafka gave each topic at its creation; leave out topics that do not exist.

    Blocks for one round trip, or for two seconds if a topic is missing, as this broker may not know yet of a topic that was
    just created. Raises `OutcomeUnknown` if no broker answers, `PreflightFailed` if this user may not describe a topic.
    """
    if not topics:
        return {}
    found: dict[str, str] = {}

    def known() -> bool:
        found.update(_ids(admin, [topic for topic in topics if topic not in found], settings))
        return all(topic in found for topic in topics)

    wait_until(known, _KNOWN_EVERYWHERE_S)
    return found


def ask_descriptions(
    admin: AdminClient, topics: Sequence[str], settings: Settings
) -> Mapping[str, Future[TopicDescription]]:
    """Ask for ids and partitions of these topics, and return the futures of the answers. Does not block."""
    return _describe(admin, topics, settings.broker_timeout_ms / 1000)


def _describe(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> Mapping[str, Future[TopicDescription]]:
    return admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)


def _ids(admin: AdminClient, topics: Sequence[str], settings: Settings) -> dict[str, str]:
    try:
        return ask_controller(
            admin, settings.broker_timeout_ms / 1000, lambda seconds: _ids_once(admin, topics, seconds)
        )
    except KafkaException as error:
        what = f"failed to describe {'topic' if len(topics) == 1 else 'topics'} {', '.join(topics)}"
        raise failed_request(what, error, "give this user the right to describe them") from error


def _ids_once(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> dict[str, str]:
    found: dict[str, str] = {}
    denied: list[str] = []
    for topic, future in _describe(admin, topics, timeout_s).items():
        try:
            found[topic] = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                denied.append(f"Describe on topic {topic}")
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    _require_granted(denied)
    return found


def wait_until_led(admin: AdminClient, topics: Sequence[str], settings: Settings) -> None:
    """Block until every partition of these topics has a leader, as a created topic reaches brokers with a delay.

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
        raise BrokersAway(
            f"cannot reach Kafka at {settings.bootstrap_servers}: {error.args[0].str()}; start it with `tidemark up`, or "
            "set TIDEMARK_BOOTSTRAP_SERVERS"
        ) from error


@dataclass(frozen=True)
class PartitionFacts:
    """Replicas of a partition, by broker id. `leader` is None while the partition has no leader."""

    leader: int | None
    replicas: frozenset[int]
    in_sync: frozenset[int]


def describe_replicas(
    admin: AdminClient, settings: Settings
) -> tuple[frozenset[int], dict[str, dict[int, PartitionFacts]]]:
    """Return the ids of the brokers that answer, and the partitions of every topic. Blocks and raises as `describe_topics`."""
    metadata = _metadata(admin, settings)
    topics = {
        name: {
            number: PartitionFacts(
                None if found.leader < 0 else found.leader, frozenset(found.replicas), frozenset(found.isrs)
            )
            for number, found in topic.partitions.items()
        }
        for name, topic in metadata.topics.items()
        if topic.error is None
    }
    return frozenset(metadata.brokers), topics


def broker_config(admin: AdminClient, broker: int, settings: Settings) -> dict[str, str]:
    """Return every setting of one broker, defaults included. Blocks for one round trip.

    Raises `PreflightFailed` if this user may not see them, `OutcomeUnknown` if the broker does not answer in time.
    """
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    future = admin.describe_configs([resource], request_timeout=settings.broker_timeout_ms / 1000)[resource]
    try:
        return {key: entry.value for key, entry in future.result().items()}
    except KafkaException as error:
        raise failed_request(
            f"failed to read the settings of broker {broker}",
            error,
            "give this user the right to describe the cluster's configuration (`tidemark acls NAME --principal … --audits` "
            "prints it)",
        ) from error


def offset_metadata_limit(admin: AdminClient, settings: Settings) -> int | None:
    """Return how many bytes of metadata the brokers accept with an offset; None if they do not tell this user. Blocks.

    Raises `OutcomeUnknown` if no broker answers.
    """
    brokers, _ = describe_replicas(admin, settings)
    try:
        config = broker_config(admin, min(brokers), settings)
    except PreflightFailed:
        return None
    limit = config.get("offset.metadata.max.bytes")
    return None if limit is None else int(limit)
