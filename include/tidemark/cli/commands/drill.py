"""Test whether the state can be rebuilt, how long that takes, and whether it is the same."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(
    epilog=examples("tidemark drill run clicks", "tidemark drill run clicks --follow-batches 10 --follow-for 5m")
)
def run(
    topology: TopologyName,
    as_json: AsJson = False,
    follow_batches: Annotated[int, typer.Option(min=0, help="batches that the rebuilt tasks follow")] = 3,
    follow_for: Annotated[str, typer.Option(help="longest time to wait for them, such as `2m`")] = "2m",
) -> None:
    """Rebuild every task elsewhere while the application runs, and compare key by key.

    Ends with 1 if a key is proven to differ, with 10 if the evidence was not enough to show that none does.
    """
    from tidemark.cli import drill
    from tidemark.cli.output import Output

    drill.run(topology, follow_batches, follow_for, Output(as_json=as_json))


@app.command(epilog=examples("tidemark drill history clicks"))
def history(topology: TopologyName, as_json: AsJson = False) -> None:
    """Show earlier drills, the newest first."""
    from tidemark.cli import drill
    from tidemark.cli.output import Output

    drill.history(topology, Output(as_json=as_json))
