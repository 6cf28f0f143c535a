"""Show what `Topology(optimised=True)` would change, and measure how much it saves."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=examples("tidemark optimise plan clicks"))
def plan(topology: TopologyName, as_json: AsJson = False) -> None:
    """Show the topics that optimised=True merges and the changelogs it saves."""
    from tidemark.cli import optimise
    from tidemark.cli.output import Output

    optimise.plan(topology, Output(as_json=as_json))


@app.command(epilog=examples("tidemark optimise measure clicks --records 50000"))
def measure(
    topology: TopologyName,
    records: Annotated[int, typer.Option(min=10, help="records for each source")] = 200_000,
    seed: Annotated[int, typer.Option(help="the same seed makes the same records")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what `plan` shows, then run both plans on generated records and compare records/s and bytes.

    This starts a broker and one instance for each plan, one after the other, and takes a minute or two. It uses no
    broker but its own.
    """
    from tidemark.cli import optimise
    from tidemark.cli.output import Output

    optimise.measure(topology, records, seed, Output(as_json=as_json))
