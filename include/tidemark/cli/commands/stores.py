"""`tidemark stores`: how large the stores of an application are, and how fast they grow."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import DEMO, AsJson, TopologyName, examples

EPILOG = examples("tidemark stores clicks", "tidemark stores clicks --history")


def stores(
    topology: TopologyName = DEMO,
    history: Annotated[bool, typer.Option("--history", help="growth per hour since the first sample")] = False,
    as_json: AsJson = False,
) -> None:
    """Show keys and bytes of each task's stores, on disk and in the changelog topic; each run is stored as a sample.

    Instances may run. Only the state_dir of this machine is read.
    """
    from tidemark.cli.output import Output
    from tidemark.cli.stores import show_history, show_stores

    show = show_history if history else show_stores
    show(topology, Output(as_json=as_json))
