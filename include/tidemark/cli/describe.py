"""Show a topology as Kafka Streams prints it, and as a picture."""

from __future__ import annotations

from pathlib import Path

from tidemark.cli.output import Output, Verbatim
from tidemark.errors import TidemarkError
from tidemark.topology.describe import describe_as_data
from tidemark.topology_loader import load


def show_topology(topology: str, output: Output) -> None:
    """Show sub-topologies, nodes, stores and topics, and where each node runs."""
    built = load(topology)
    output.show(describe_as_data(built.plan()), Verbatim(built.describe()))


def write_picture(topology: str, svg: Path, output: Output) -> None:
    """Write a picture of the topology to a file. Raises `TidemarkError` if it cannot be written."""
    # The text needs none of this.
    from tidemark.topology.drawing.layout import picture

    drawn = picture(load(topology).plan())
    try:
        svg.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise TidemarkError(f"cannot write {svg}: {error.strerror}; give a file in a folder that exists") from error
    output.show({"svg": svg}, Verbatim(f"{svg} written"))
