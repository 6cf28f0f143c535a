"""The topics of an application."""

from __future__ import annotations

from typing import Annotated

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

app = typer.Typer(no_args_is_help=True)
_Topology = Annotated[str, typer.Argument(help="module in include/topologies")]


@app.command()
def create(topology: _Topology) -> None:
    """Create missing source and sink topics with `num_partitions`; an instance creates internal topics when it starts."""
    settings = Settings.load()
    created = ensure_user_topics(load(topology).plan(), settings, AdminClient(librdkafka_config(settings)))
    typer.echo(f"created {', '.join(created)}" if created else "all topics exist")


@app.command()
def plan(topology: _Topology) -> None:
    """Print which settings of internal topics differ from those that the topology asks for; changes nothing."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    _show(plan_changes(load(topology).plan(), settings, admin))


@app.command()
def run(topology: _Topology) -> None:
    """Print the differences, then change the settings of the existing topics."""
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


@app.command("list")
def list_topics(topology: _Topology) -> None:
    """List every topic of the application, whether it exists, and the settings that internal topics need."""
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
