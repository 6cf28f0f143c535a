"""The samples of the durability check: replicas, settings of topics and brokers, and `acks` of running instances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka.admin import AdminClient

from tidemark.checks.durability import durability_findings
from tidemark.checks.never_ran import never_ran
from tidemark.checks.replicas import ClusterDurability, Replicas, TopicDurability, TopicRole
from tidemark.errors import StartRefused, TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import PartitionFacts, broker_config, describe_replicas, topic_configs
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.tools import kafka_tool
from tidemark.kafka.topics import internal_topics, partition_counts
from tidemark.names import TopicPartition, dlq_topic, events_topic, topology_topic
from tidemark.registry.description import Description
from tidemark.registry.reader import identities_of, named, recorded
from tidemark.registry.topic_identities import TopicUse, topics_in_use
from tidemark.settings import Settings
from tidemark.supervision.live_instances import live_instances
from tidemark.topology.plan import Acks, TopologyPlan
from tidemark.verdict import Finding, Verdict

_KAFKAS_OWN = ("__consumer_offsets", "__transaction_state")
_ELIGIBLE = re.compile(r"Topic: (\S+)\s+Partition: (\d+)\s.*\bElr: ([\d,]*)(?:\s|$)")


def check_durability(plan: TopologyPlan, settings: Settings) -> list[Finding]:
    """Return a verdict per topic and per kind of failure. Blocks, for some seconds if partitions are short of replicas.

    Raises `OutcomeUnknown` if no broker answers, `PreflightFailed` if this user lacks a permission.
    """
    admin = AdminClient(librdkafka_config(settings))
    if unknown := never_ran(plan, settings, admin):
        return unknown
    try:
        found = recorded(settings, admin, plan, partition_counts(admin, settings))
    except StartRefused as lost:
        return [Finding(topology_topic(plan.application_id), Verdict.FAILED, str(lost))]
    return durability_findings(sample_durability(named(plan, found), found, settings, admin))


def sample_durability(
    plan: TopologyPlan, description: Description | None, settings: Settings, admin: AdminClient
) -> ClusterDurability:
    """Take a sample. `plan` has the current names of topics; `description` is the one in the last commit.

    Blocks; raises as `check_durability`.
    """
    brokers, topics = describe_replicas(admin, settings)
    identities = identities_of(description, settings, admin)
    roles = {name: role for name, role in topic_roles(plan, settings, topics).items() if name in topics}
    configs = topic_configs(admin, list(roles), settings)
    passing = {dlq_topic(plan.application_id), events_topic(plan.application_id)}
    broker = broker_config(admin, min(brokers), settings)
    truncated = truncated_changelogs(plan, topics, configs, EndOffsets(admin, settings.broker_timeout_ms / 1000))
    return ClusterDurability(
        brokers=brokers,
        topics=tuple(
            replace(
                _topic(
                    name,
                    role,
                    topics[name],
                    configs[name],
                    settings,
                    keeps_state=role is TopicRole.INTERNAL and name not in passing,
                ),
                truncated=truncated.get(name, ()),
            )
            for name, role in roles.items()
        ),
        acks={
            instance.instance: _acks(instance.said().get("acks"))
            for instance in live_instances(settings.var_dir, plan.application_id)
        },
        transaction_replication=int(broker["transaction.state.log.replication.factor"]),
        transaction_min_in_sync=int(broker["transaction.state.log.min.isr"]),
        flush_messages=int(broker["log.flush.interval.messages"]),
        tolerated_broker_failures=plan.tolerated_broker_failures,
        known_topics=len(identities.known),
        lost=tuple(identities.lost(plan).values()),
        stated_acks=plan.acks,
    )


def _acks(said: str | None) -> Acks | None:
    return next((acks for acks in Acks if acks.value == said), None)


def truncated_changelogs(
    plan: TopologyPlan,
    topics: Mapping[str, Mapping[int, PartitionFacts]],
    configs: Mapping[str, Mapping[str, str]],
    ends: EndOffsets,
) -> dict[str, tuple[int, ...]]:
    """Return the partitions of compacted-only changelogs that have lost their beginning, without offline ones. Blocks."""
    changelogs = [
        topic
        for topic, use in topics_in_use(plan).items()
        if use is TopicUse.CHANGELOG and configs.get(topic, {}).get("cleanup.policy") == "compact"
    ]
    places = [TopicPartition(t, n) for t in changelogs for n, facts in topics[t].items() if facts.leader is not None]
    lows = ends.beginnings(places)
    found: dict[str, tuple[int, ...]] = {}
    for place in sorted(place for place, low in lows.items() if low > 0):
        found[place.topic] = (*found.get(place.topic, ()), place.partition)
    return found


def topic_roles(
    plan: TopologyPlan, settings: Settings, topics: Mapping[str, Mapping[int, PartitionFacts]]
) -> dict[str, TopicRole]:
    """Return every topic that the application depends on, in the order of the report. Some may not exist."""
    sources = {t for s in plan.subtopologies for t in s.source_topics}
    internal = set(plan.repartition_topics)
    if sources - internal <= topics.keys():
        partitions = {name: len(found) for name, found in topics.items()}
        internal |= {spec.name for spec in internal_topics(plan, settings, partitions)}
    return {
        **dict.fromkeys(sorted(sources - internal), TopicRole.SOURCE),
        **dict.fromkeys(sorted(plan.output_topics), TopicRole.SINK),
        **dict.fromkeys(sorted(internal), TopicRole.INTERNAL),
        **dict.fromkeys(_KAFKAS_OWN, TopicRole.KAFKA),
    }


def _topic(
    name: str,
    role: TopicRole,
    found: Mapping[int, PartitionFacts],
    config: Mapping[str, str],
    settings: Settings,
    *,
    keeps_state: bool,
) -> TopicDurability:
    min_in_sync = int(config["min.insync.replicas"])
    limit_bytes = int(config["retention.bytes"]) if "delete" in config["cleanup.policy"] else -1
    # Brokers record eligible leaders only for partitions that are short of replicas.
    is_short = any(len(facts.in_sync) < min_in_sync or facts.leader is None for facts in found.values())
    eligible = eligible_leaders(name, settings) if is_short else None
    return TopicDurability(
        topic=name,
        role=role,
        min_in_sync=min_in_sync,
        unclean_election=config["unclean.leader.election.enable"] == "true",
        partitions=tuple(
            Replicas(
                TopicPartition(name, number),
                facts.leader,
                facts.replicas,
                facts.in_sync,
                None if eligible is None else eligible.get(number, frozenset()),
            )
            for number, facts in sorted(found.items())
        ),
        deleted_above_bytes=limit_bytes if keeps_state and limit_bytes >= 0 else None,
    )


def eligible_leaders(topic: str, settings: Settings) -> dict[int, frozenset[int]] | None:
    """Return eligible leader replicas by partition, from `kafka-topics`; None if it does not report them. Blocks.

    See invariant: what clients cannot see.
    """
    try:
        code, said = kafka_tool("topics", "--describe", "--topic", topic, settings=settings, capture=True)
    except (TidemarkError, OSError):
        return None
    return parse_eligible_leaders(topic, said) if code == 0 else None


def parse_eligible_leaders(topic: str, said: str) -> dict[int, frozenset[int]] | None:
    """Parse the output of `kafka-topics --describe`; returns None if the cluster does not record eligible leaders."""
    found = {
        int(number): frozenset(int(broker) for broker in brokers.split(",") if broker)
        for name, number, brokers in _ELIGIBLE.findall(said)
        if name == topic
    }
    return found or None
