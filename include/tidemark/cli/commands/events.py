"""`tidemark events`: the events of an application's instances, from the database of facts."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import DEMO, TopologyName, examples

EPILOG = examples("tidemark events clicks --since 1d", "tidemark events clicks --follow")


def events(
    topology: TopologyName = DEMO,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="also print new events, until stopped")] = False,
    since: Annotated[str, typer.Option(help="how far back: 30m, 1h, 7d")] = "1h",
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON, for a program; with --follow, one event per line")
    ] = False,
) -> None:
    """Show state transitions, rebalances and restores of an application's instances."""
    from tidemark.cli.events import show_events
    from tidemark.cli.output import Output

    show_events(topology, since, Output(as_json=as_json), follow=follow)
