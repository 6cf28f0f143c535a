"""Repair a changelog that was lost or written to by another program, from a correct copy of its store."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples
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


@app.command(epilog=examples("tidemark repair plan clicks"))
def plan(topology: TopologyName, store: _Stores = None, source: _From = None, as_json: AsJson = False) -> None:
    """Show which changelogs would be written from which copies; compares and changes nothing, the application may run."""
    from tidemark.cli import repair
    from tidemark.cli.output import Output

    repair.plan(topology, store, source, Output(as_json=as_json))


@app.command(epilog=examples("tidemark repair run clicks --store page-clicks --from savepoint"))
def run(
    topology: TopologyName,
    store: _Stores = None,
    source: _From = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Compare the copies with the changelogs, ask, then write what differs; all instances must be stopped."""
    from tidemark.cli import repair
    from tidemark.cli.output import Output

    repair.run(topology, store, source, Output(as_json=as_json, yes=yes))
