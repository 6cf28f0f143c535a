"""Return to the state of an earlier time, after showing the plan and asking."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples

app = typer.Typer(no_args_is_help=True)
_To = Annotated[str, typer.Option("--to", help="2026-08-01T12:00:00Z, epoch milliseconds, or -10m")]


@app.command(epilog=examples("tidemark rewind plan shopping --to -10m"))
def plan(topology: TopologyName, to: _To, as_json: AsJson = False) -> None:
    """Show what a return to a time would change; changes nothing, the application may run."""
    from tidemark.cli import rewind
    from tidemark.cli.output import Output

    rewind.plan(topology, to, Output(as_json=as_json))


@app.command(epilog=examples("tidemark rewind run shopping --to 2026-08-01T12:00:00Z"))
def run(topology: TopologyName, to: _To, yes: Yes = False, as_json: AsJson = False) -> None:
    """Show the plan, ask, then write state, offsets and commit records in one step; all instances must be stopped."""
    from tidemark.cli import rewind
    from tidemark.cli.output import Output

    rewind.run(topology, to, Output(as_json=as_json, yes=yes))
