"""`tidemark describe`: a topology as Kafka Streams prints it, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.errors import TidemarkError
from tidemark.topology_loader import load


def describe(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    svg: Annotated[Path | None, typer.Option(help="write a picture to this file instead")] = None,
) -> None:
    """Print sub-topologies, nodes, stores and topics, and where each node runs."""
    built = load(topology)
    if svg is None:
        typer.echo(built.describe())
        return
    from tidemark.topology.drawing.layout import picture

    try:
        svg.write_text(picture(built.plan()), encoding="utf-8")
    except OSError as error:
        raise TidemarkError(f"cannot write {svg}: {error.strerror}; give a file in a folder that exists") from error
    typer.echo(f"{svg} written")
