"""`tidemark describe`: a topology as Kafka Streams prints it, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import TopologyName


def describe(
    topology: TopologyName,
    svg: Annotated[Path | None, typer.Option(help="write a picture to this file instead")] = None,
) -> None:
    """Print sub-topologies, nodes, stores and topics, and where each node runs."""
    from tidemark.cli.describe import print_topology, write_picture

    if svg is None:
        print_topology(topology)
    else:
        write_picture(topology, svg)
