"""`tidemark inspect`: the contents of an application's stores at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

EPILOG = examples(
    "tidemark inspect shopping --at -10m --store purchase-totals --key ana",
    "tidemark inspect shopping --at 2026-08-01T12:00:00Z --out /tmp/noon",
)


def inspect(
    topology: TopologyName,
    at: Annotated[str, typer.Option(help="2026-08-01T12:00:00Z, epoch milliseconds, -10m; default: now")] = "now",
    out: Annotated[Path | None, typer.Option(help="keep the copy in this folder, which must not exist yet")] = None,
    store: Annotated[str | None, typer.Option(help="only this store")] = None,
    key: Annotated[str | None, typer.Option(help="only this key")] = None,
    prefix: Annotated[str, typer.Option(help="only keys with this prefix")] = "",
    limit: Annotated[int, typer.Option(min=0, help="rows of each task and store; 0: all")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the stores as they were at a time: a read-only copy, built elsewhere and compared with the changelogs.

    The application may run; nothing of it is changed.
    """
    from tidemark.cli.inspect import Selected, show_point_in_time
    from tidemark.cli.output import Output

    show_point_in_time(topology, at, out, Selected(store, key, prefix, limit), Output(as_json=as_json))
