"""Differences between the settings of internal topics and those that the topology asks for, and how they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.kafka.admin_errors import failed_request
from tidemark.kafka.attempts import find_controller
from tidemark.kafka.cluster import describe_topics, topic_configs
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topics import internal_topics
from tidemark.processes import wait_until
from tidemark.registry.operator_rights import verified_description
from tidemark.registry.reader import named
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class TopicChange:
    """One setting of one topic: the value that the broker has, and the value that the topology asks for."""

    topic: str
    setting: str
    found: str
    wanted: str


def plan_changes(
    plan: TopologyPlan, settings: Settings, admin: AdminClient, command: Command = Command.SHOW_SETTINGS
) -> list[TopicChange]:
    """Return the changes that `apply_changes` would make, by topic. Topics that do not exist yet need none. Blocks.

    `plan` is that of the topology module. The topics compared are the current ones, also after an upgrade or a rescale.
    Raises `PreflightFailed` if a source topic does not exist, or if the user may not do what `command` needs: a topic that
    the user may not see looks like a missing one.
    """
    plan = named(plan, verified_description(command, plan, settings, admin))
    existing = {name: facts.partitions for name, facts in describe_topics(admin, settings).items()}
    missing = [t for s in plan.subtopologies for t in s.source_topics if t not in existing]
    missing = [topic for topic in missing if topic not in plan.repartition_topics]
    if missing:
        raise PreflightFailed(
            f"source topic {missing[0]} of {plan.application_id} does not exist at {settings.bootstrap_servers}; create "
            "it, or let `tidemark topics create NAME` do it"
        )
    specs = [spec for spec in internal_topics(plan, settings, existing) if spec.name in existing]
    configs = topic_configs(admin, [spec.name for spec in specs], settings)
    return [
        TopicChange(spec.name, key, configs[spec.name].get(key, ""), wanted)
        for spec in specs
        for key, wanted in spec.config.items()
        if not _is_alike(configs[spec.name].get(key, ""), wanted)
    ]


def apply_changes(changes: Sequence[TopicChange], settings: Settings, admin: AdminClient) -> None:
    """Apply the changes topic by topic, leaving every other setting as it is. Blocks.

    Raises `PreflightFailed` with the topic that refused; the topics before it are changed. Raises `OutcomeUnknown` if the
    brokers do not answer, or do not show the new settings, within `broker_timeout_ms`.
    """
    if not changes:
        return
    timeout_s = settings.broker_timeout_ms / 1000
    find_controller(admin, timeout_s)
    for topic in dict.fromkeys(change.topic for change in changes):
        entries = [
            ConfigEntry(change.setting, change.wanted, incremental_operation=AlterConfigOpType.SET)
            for change in changes
            if change.topic == topic
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        answer = admin.incremental_alter_configs([resource], request_timeout=timeout_s)
        try:
            answer[resource].result()
        except KafkaException as error:
            what = f"failed to change topic {topic}"
            raise failed_request(what, error, "give this user the right to alter its settings") from error
    # The controller has the settings; other brokers receive them with a delay.
    topics = list(dict.fromkeys(change.topic for change in changes))

    def is_shown() -> bool:
        shown = topic_configs(admin, topics, settings)
        return all(_is_alike(shown[c.topic].get(c.setting, ""), c.wanted) for c in changes)

    if not wait_until(is_shown, timeout_s):
        raise OutcomeUnknown(
            f"the brokers do not show the new settings of {', '.join(topics)} yet; check with `tidemark topics plan NAME`"
        )


def _is_alike(found: str, wanted: str) -> bool:
    return set(found.split(",")) == set(wanted.split(","))
