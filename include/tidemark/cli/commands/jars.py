"""Fetch and verify the jars that are not part of pyspark."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark jars kafka spark", "tidemark jars kafka --paths")


def jars(
    sets: Annotated[list[str] | None, typer.Argument(help="spark, kafka or bench; default: all")] = None,
    paths: Annotated[bool, typer.Option(help="print the paths, for a class path")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch missing jars into the cache folder, and verify all of them.

    If spark and kafka are both among the sets, also archive their classes once, so that both start in half the time.
    """
    from tidemark.cli.jars import fetch_jars
    from tidemark.cli.output import Output

    fetch_jars(sets, Output(as_json=as_json), paths=paths)
