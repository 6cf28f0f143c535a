"""Move the offsets from which an application continues to read, and empty or keep its state."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples
from tidemark.operations.change.reset_target import ResetTo, StateAfter

app = typer.Typer(no_args_is_help=True)
_To = Annotated[ResetTo, typer.Option("--to", help="new offset of every source partition")]
_State = Annotated[StateAfter, typer.Option("--state", help="what happens to the stores")]
_Offsets = Annotated[list[str] | None, typer.Option("--offset", help="TOPIC:PARTITION=OFFSET, for --to offsets")]
_Time = Annotated[str | None, typer.Option("--time", help="2026-08-01T12:00:00Z, epoch ms, or -10m")]


@app.command(
    epilog=examples(
        "tidemark reset plan clicks --to earliest --state empty",
        "tidemark reset plan clicks --to time --time -1h --state keep",
    )
)
def plan(
    topology: TopologyName,
    to: _To,
    state: _State,
    offset: _Offsets = None,
    time: _Time = None,
    as_json: AsJson = False,
) -> None:
    """Show what moving the offsets means; changes nothing, the application may run."""
    from tidemark.cli import reset
    from tidemark.cli.output import Output

    reset.plan(topology, reset.Asked.of(to, state, offset, time), Output(as_json=as_json))


@app.command(
    epilog=examples(
        "tidemark reset run clicks --to latest --state keep",
        "tidemark reset run shopping --to offsets --offset purchases:0=1200 --state empty",
    )
)
def run(
    topology: TopologyName,
    to: _To,
    state: _State,
    offset: _Offsets = None,
    time: _Time = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the plan, ask, then write offsets and commit records in one step; all instances must be stopped."""
    from tidemark.cli import reset
    from tidemark.cli.output import Output

    reset.run(topology, reset.Asked.of(to, state, offset, time), Output(as_json=as_json, yes=yes))
