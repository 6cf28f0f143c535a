"""The topics of an application."""

from __future__ import annotations

import typer

from tidemark.cli.arguments import TopologyName

app = typer.Typer(no_args_is_help=True)


@app.command()
def create(topology: TopologyName) -> None:
    """Create missing source and sink topics with `num_partitions`; an instance creates internal topics when it starts."""
    from tidemark.cli import topics

    topics.create(topology)


@app.command()
def plan(topology: TopologyName) -> None:
    """Print which settings of internal topics differ from those that the topology asks for; changes nothing."""
    from tidemark.cli import topics

    topics.plan(topology)


@app.command()
def run(topology: TopologyName) -> None:
    """Print the differences, then change the settings of the existing topics."""
    from tidemark.cli import topics

    topics.run(topology)


@app.command("list")
def list_(topology: TopologyName) -> None:
    """List every topic of the application, whether it exists, and the settings that internal topics need."""
    from tidemark.cli import topics

    topics.list_topics(topology)
