"""Remove leftovers of commands and instances from this disk, after showing them and asking."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples

app = typer.Typer(no_args_is_help=True)
_Previous = Annotated[
    bool,
    typer.Option("--previous", help="also state that restores and rewinds have replaced: no rollback after that"),
]


@app.command(epilog=examples("tidemark clean plan clicks"))
def plan(topology: TopologyName, previous: _Previous = False, as_json: AsJson = False) -> None:
    """Show leftovers of killed commands and of other instances, and which of them can go; changes nothing."""
    from tidemark.cli import clean
    from tidemark.cli.output import Output

    clean.plan(topology, Output(as_json=as_json), previous=previous)


@app.command(epilog=examples("tidemark clean run clicks", "tidemark clean run clicks --previous --yes"))
def run(topology: TopologyName, previous: _Previous = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Show leftovers as `plan` does, ask, then remove those that can go.

    Never removed: the only state of a task, and the files of a running instance, restore or on-call case.
    """
    from tidemark.cli import clean
    from tidemark.cli.output import Output

    clean.run(topology, Output(as_json=as_json, yes=yes), previous=previous)
