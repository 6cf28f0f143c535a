"""The checks before an instance starts: broker, topics, partitions, folders. Each failure is one line with a remedy."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka.admin import AdminClient

from tidemark.errors import PreflightFailed
from tidemark.kafka.acls import verify_allowed
from tidemark.kafka.cluster import describe_topics, topic_configs
from tidemark.kafka.topics import ensure_internal_topics, partition_counts, verify_tolerated_failures, verify_writable
from tidemark.settings import Settings
from tidemark.topology.plan import Acks, TopologyPlan


def preflight(
    plan: TopologyPlan, settings: Settings, admin: AdminClient, committed: Collection[str] = ()
) -> Mapping[str, int]:
    """Run the checks, create the internal topics, and return the partition count of every topic. Blocks.

    `committed` are the topics that hold state according to the last commits: they are never created (see invariant: topic
    identity). Raises `OutcomeUnknown` if no broker answers, `PreflightFailed` for what a person must change.
    """
    _check_folder(settings)
    facts = describe_topics(admin, settings)
    # A topic that this user may not describe looks like one that does not exist.
    verify_allowed(plan, settings, admin)
    internal = set(plan.repartition_topics)
    sources = [topic for s in plan.subtopologies for topic in s.source_topics if topic not in internal]
    sinks = sorted({topic for s in plan.subtopologies for topic in s.sink_topics if topic not in internal})
    for kind, topics in (("source", sources), ("sink", sinks)):
        for topic in topics:
            if topic not in facts:
                raise PreflightFailed(
                    f"{kind} topic {topic} of {plan.application_id} does not exist at {settings.bootstrap_servers}; "
                    "create it, or let `tidemark topics create NAME` do it"
                )
    asked = [*sources, *sinks] if plan.tolerated_broker_failures else sinks
    configs = topic_configs(admin, asked, settings)
    for topic in sinks:
        # Only a write that waits for all replicas in sync fails if there are too few.
        if plan.acks is Acks.ALL or topic not in plan.output_topics:
            verify_writable(topic, facts[topic], configs[topic])
    for topic in asked:
        verify_tolerated_failures(topic, facts[topic], configs[topic], plan.tolerated_broker_failures)
    _check_tables(plan, settings, admin)
    existing = {name: found.partitions for name, found in facts.items()}
    ensure_internal_topics(plan, settings, admin, existing, committed)
    # For topics that have just been created, the first call could not check more than the right to see them.
    verify_allowed(plan, settings, admin)
    return partition_counts(admin, settings)


def _check_tables(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
    """Require that a source that is its table's changelog is compacted without deletion.

    See invariant: source topic as changelog.
    """
    topics = [store.source_topic for store in plan.stores if store.source_topic is not None]
    if found := uncompacted_tables(topics, settings, admin):
        raise PreflightFailed(found[0])


def uncompacted_tables(topics: Sequence[str], settings: Settings, admin: AdminClient) -> list[str]:
    """Return of each topic that is not compacted, or not only, why it cannot be the changelog of its table, with the remedy.

    Blocks. Raises `PreflightFailed` if a topic does not exist, `OutcomeUnknown`.
    """
    policies = {topic: each.get("cleanup.policy", "") for topic, each in topic_configs(admin, topics, settings).items()}
    return [
        f"topic {topic} is the changelog of its own table, but has cleanup.policy={policy}, so old keys would be lost; set it "
        f"with `tidemark kafka configs --alter --entity-type topics --entity-name {topic} --add-config "
        "cleanup.policy=compact`, or leave optimised=True out of the topology"
        for topic, policy in policies.items()
        if policy != "compact"
    ]


def _check_folder(settings: Settings) -> None:
    folder = settings.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason: str | None = error.strerror
    else:
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    if reason:
        raise PreflightFailed(
            f"state folder {folder} cannot be written ({reason}); give this user write permission, or set "
            "TIDEMARK_STATE_DIR to another folder"
        )
