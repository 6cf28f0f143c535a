"""All applications on this machine, on one screen."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples(
    "tidemark top", "tidemark top --once", "tidemark top --json | jq '.instances[] | {application, lag_offsets}'"
)


def top(
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two frames")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print one frame and end")] = False,
    as_json: AsJson = False,
) -> None:
    """Show all instances of this machine: state, records/s, lag, last commit, batch, memory, and why one waits.

    The screen updates itself until `q` or Ctrl-C. With --json, or without a terminal, one frame is printed.
    """
    from tidemark.cli.output import Output
    from tidemark.cli.top import show_top

    show_top(Output(as_json=as_json), every, once=once)
