"""The topics of an application."""

from __future__ import annotations

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command
from tidemark.kafka.topics import ensure_user_topics, internal_topics, partition_counts, user_topics
from tidemark.operations.topic_changes import TopicChange, apply_changes, plan_changes
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology_loader import load


def create(topology: str) -> None:
    """Create missing source and sink topics. Blocks."""
    settings = Settings.load()
    created = ensure_user_topics(load(topology).plan(), settings, AdminClient(librdkafka_config(settings)))
    typer.echo(f"created {', '.join(created)}" if created else "all topics exist")


def plan(topology: str) -> None:
    """Print which settings of internal topics differ from those that the topology asks for. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    _show(plan_changes(load(topology).plan(), settings, admin))


def run(topology: str) -> None:
    """Print the differences, then change the settings of the existing topics. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    changes = plan_changes(load(topology).plan(), settings, admin, Command.APPLY_SETTINGS)
    _show(changes)
    apply_changes(changes, settings, admin)
    if changes:
        typer.echo(f"changed {len(changes)} settings")


def _show(changes: list[TopicChange]) -> None:
    if not changes:
        typer.echo("no setting differs")
        return
    table = Table("topic", "setting", "now", "wanted")
    for change in changes:
        table.add_row(change.topic, change.setting, change.found or "not set", change.wanted)
    Console().print(table)


def list_topics(topology: str) -> None:
    """List the topics of the application, whether they exist, and the settings that internal topics need. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    existing = partition_counts(admin, settings)
    table = Table("topic", "partitions", "needed settings")
    for topic in user_topics(plan):
        table.add_row(topic, str(existing.get(topic, "missing")), "")
    sources = {topic for s in plan.subtopologies for topic in s.source_topics}
    if sources - set(plan.repartition_topics) <= existing.keys():
        for spec in internal_topics(plan, settings, existing):
            needed = " ".join(f"{key}={value}" for key, value in spec.config.items())
            table.add_row(spec.name, str(existing.get(spec.name, "missing")), needed)
    Console().print(table)
