"""Keep warm copies of an application's stores on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import DEMO, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=examples("tidemark standby run clicks", "tidemark standby run clicks --number 1"))
def run(
    topology: TopologyName = DEMO,
    number: Annotated[int, typer.Option(min=0, help="number of this standby, if a machine has several")] = 0,
) -> None:
    """Keep copies of an application's stores by following its changelogs, until it is interrupted.

    An instance that starts on this machine takes over a copy and reads only the tail of the changelog.
    """
    from tidemark.cli import standby

    standby.run(topology, number)
