"""Repair a changelog that was lost or written to by another program, from a correct copy of its store."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import TopologyName, Yes
from tidemark.recovery.source_of_state import SourceOfState

app = typer.Typer(no_args_is_help=True)
_Stores = Annotated[
    list[str] | None,
    typer.Option("--store", help="only these; default: damaged ones, and those that differed in the last drill"),
]
_From = Annotated[
    SourceOfState | None,
    typer.Option("--from", help="the copy that is right; default: the best one, unless it is suspected"),
]


@app.command()
def plan(topology: TopologyName, store: _Stores = None, source: _From = None) -> None:
    """Show which changelogs would be written from which copies; compares and changes nothing, the application may run."""
    from tidemark.cli import repair

    repair.plan(topology, store, source)


@app.command()
def run(topology: TopologyName, store: _Stores = None, source: _From = None, yes: Yes = False) -> None:
    """Compare the copies with the changelogs, ask, then write what differs; all instances must be stopped."""
    from tidemark.cli import repair

    repair.run(topology, store, source, yes=yes)
