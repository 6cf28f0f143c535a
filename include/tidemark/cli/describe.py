"""`tidemark describe`: a topology as Kafka Streams prints one."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.topology.load import load


def describe(topology: Annotated[str, typer.Argument(help="module in include/topologies")]) -> None:
    """Sub-topologies, nodes, stores and topics, and where each node runs."""
    typer.echo(load(topology).describe())
