"""`tidemark describe`: a topology as Kafka Streams prints it, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

EPILOG = examples(
    "tidemark describe shopping",
    "tidemark describe shopping --svg shopping.svg",
    "tidemark describe shopping --json | jq '.subtopologies[].stores[].name'",
)


def describe(
    topology: TopologyName,
    svg: Annotated[Path | None, typer.Option(help="write a picture to this file instead")] = None,
    as_json: AsJson = False,
) -> None:
    """Print sub-topologies, nodes, stores and topics, and where each node runs."""
    from tidemark.cli.describe import show_topology, write_picture
    from tidemark.cli.output import Output

    if svg is None:
        show_topology(topology, Output(as_json=as_json))
    else:
        write_picture(topology, svg, Output(as_json=as_json))
