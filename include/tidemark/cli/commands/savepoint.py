"""Savepoints of an application: take, list, verify, expire."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=examples("tidemark savepoint take clicks"))
def take(topology: TopologyName, as_json: AsJson = False) -> None:
    """Take a savepoint of all tasks without stopping the stream; if nothing runs, of the state folders on this machine."""
    from tidemark.cli import savepoint
    from tidemark.cli.output import Output

    savepoint.take(topology, Output(as_json=as_json))


@app.command(
    "list", epilog=examples("tidemark savepoint list clicks", "tidemark savepoint list clicks --json | jq -r '.[0].id'")
)
def list_(topology: TopologyName, as_json: AsJson = False) -> None:
    """List all savepoints, the newest first."""
    from tidemark.cli import savepoint
    from tidemark.cli.output import Output

    savepoint.list_savepoints(topology, Output(as_json=as_json))


@app.command(epilog=examples("tidemark savepoint verify clicks"))
def verify(
    topology: TopologyName,
    savepoint_id: Annotated[str, typer.Argument(help="default: the newest complete one")] = "",
    as_json: AsJson = False,
) -> None:
    """Read every file of a savepoint and compare it with its checksum; ends with 1 if one is wrong."""
    from tidemark.cli import savepoint
    from tidemark.cli.output import Output

    savepoint.verify(topology, savepoint_id, Output(as_json=as_json))


@app.command(epilog=examples("tidemark savepoint expire clicks --keep 3 --max-age 7d"))
def expire(
    topology: TopologyName,
    keep: Annotated[
        int | None, typer.Option(min=0, help="complete savepoints to keep; default: the setting savepoints_kept")
    ] = None,
    max_age: Annotated[str | None, typer.Option(help="such as `36h` or `7d`: also remove older ones")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove savepoints by count and age, then the files that no other savepoint uses."""
    from tidemark.cli import savepoint
    from tidemark.cli.output import Output

    savepoint.expire(topology, keep, max_age, Output(as_json=as_json))
