"""Show a topology as Kafka Streams prints it, and as a picture."""

from __future__ import annotations

from pathlib import Path

import typer

from tidemark.errors import TidemarkError
from tidemark.topology.drawing.layout import picture
from tidemark.topology_loader import load


def print_topology(topology: str) -> None:
    """Print sub-topologies, nodes, stores and topics, and where each node runs."""
    typer.echo(load(topology).describe())


def write_picture(topology: str, svg: Path) -> None:
    """Write a picture of the topology to a file. Raises `TidemarkError` if it cannot be written."""
    drawn = picture(load(topology).plan())
    try:
        svg.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise TidemarkError(f"cannot write {svg}: {error.strerror}; give a file in a folder that exists") from error
    typer.echo(f"{svg} written")
