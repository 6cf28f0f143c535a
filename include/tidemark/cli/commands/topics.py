"""The topics of an application."""

from __future__ import annotations

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=examples("tidemark topics create clicks"))
def create(topology: TopologyName, as_json: AsJson = False) -> None:
    """Create missing source and sink topics with `num_partitions`; an instance creates internal topics when it starts."""
    from tidemark.cli import topics
    from tidemark.cli.output import Output

    topics.create(topology, Output(as_json=as_json))


@app.command(epilog=examples("tidemark topics plan clicks"))
def plan(topology: TopologyName, as_json: AsJson = False) -> None:
    """Print which settings of internal topics differ from those that the topology asks for; changes nothing."""
    from tidemark.cli import topics
    from tidemark.cli.output import Output

    topics.plan(topology, Output(as_json=as_json))


@app.command(epilog=examples("tidemark topics run clicks"))
def run(topology: TopologyName, as_json: AsJson = False) -> None:
    """Print the differences, then change the settings of the existing topics."""
    from tidemark.cli import topics
    from tidemark.cli.output import Output

    topics.run(topology, Output(as_json=as_json))


@app.command("list", epilog=examples("tidemark topics list clicks"))
def list_(topology: TopologyName, as_json: AsJson = False) -> None:
    """List every topic of the application, whether it exists, and the settings that internal topics need."""
    from tidemark.cli import topics
    from tidemark.cli.output import Output

    topics.list_topics(topology, Output(as_json=as_json))
