"""Return to the state of an earlier time, after showing the plan and asking."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import TopologyName, Yes

app = typer.Typer(no_args_is_help=True)
_To = Annotated[str, typer.Option("--to", help="2026-08-01T12:00:00Z, epoch milliseconds, or -10m")]


@app.command()
def plan(topology: TopologyName, to: _To) -> None:
    """Show what a return to a time would change; changes nothing, the application may run."""
    from tidemark.cli import rewind

    rewind.plan(topology, to)


@app.command()
def run(topology: TopologyName, to: _To, yes: Yes = False) -> None:
    """Show the plan, ask, then write state, offsets and commit records in one step; all instances must be stopped."""
    from tidemark.cli import rewind

    rewind.run(topology, to, yes=yes)
