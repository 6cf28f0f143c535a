"""The topics of an application and their settings."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tidemark.cli.output import Output, View
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topics import (
    endpoints_spec,
    ensure_user_topics,
    internal_topics,
    partition_counts,
    user_topics,
)
from tidemark.listing import Listing
from tidemark.operations.topic_changes import TopicChange, apply_changes, plan_changes
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology_loader import load


def create(topology: str, output: Output) -> None:
    """Create missing source and sink topics. Blocks."""
    settings = Settings.load()
    created = ensure_user_topics(load(topology).plan(), settings, AdminClient(librdkafka_config(settings)))
    output.show({"created": created}, f"created {', '.join(created)}" if created else "all topics exist")


def plan(topology: str, output: Output) -> None:
    """Show which settings of internal topics differ from those that the topology asks for. Blocks."""
    settings = Settings.load()
    changes = plan_changes(load(topology).plan(), settings, AdminClient(librdkafka_config(settings)))
    output.show({"is_changed": False, "settings": changes}, _view(changes))


def run(topology: str, output: Output) -> None:
    """Show the differences, then change the settings of the existing topics. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    changes = plan_changes(load(topology).plan(), settings, admin, Command.APPLY_SETTINGS)
    output.people(_view(changes))
    apply_changes(changes, settings, admin)
    done = [f"changed {len(changes)} settings"] if changes else []
    output.show({"is_changed": bool(changes), "settings": changes}, *done)


def _view(changes: list[TopicChange]) -> View:
    if not changes:
        return "no setting differs"
    listing = Listing("topic", "setting", "now", "wanted")
    for change in changes:
        listing.add(change.topic, change.setting, change.found or "not set", change.wanted)
    return listing


def list_topics(topology: str, output: Output) -> None:
    """List the topics of the application, whether they exist, and the settings that internal topics need. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    existing = partition_counts(admin, settings)
    needed = {topic: dict[str, str]() for topic in user_topics(plan)}
    sources = {topic for s in plan.subtopologies for topic in s.source_topics}
    if sources - set(plan.repartition_topics) <= existing.keys():
        needed |= {spec.name: dict(spec.config) for spec in internal_topics(plan, settings, existing)}
    endpoints = endpoints_spec(plan)
    if settings.query_port >= 0 or endpoints.name in existing:
        needed[endpoints.name] = dict(endpoints.config)
    listing = Listing("topic", "partitions", "needed settings")
    for topic, config in needed.items():
        settings_text = " ".join(f"{key}={value}" for key, value in config.items())
        listing.add(topic, str(existing.get(topic, "missing")), settings_text)
    rows = [
        {"topic": topic, "partitions": existing.get(topic), "needed_settings": config}
        for topic, config in needed.items()
    ]
    output.show(rows, listing)
