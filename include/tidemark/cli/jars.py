"""Fetch and verify the jars that are not part of pyspark."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.errors import TidemarkError
from tidemark.kafka import jars as local_jars
from tidemark.settings import Settings


def jars(
    sets: Annotated[list[str] | None, typer.Argument(help="spark, kafka or bench; default: all")] = None,
    paths: Annotated[bool, typer.Option(help="print the paths, for a class path")] = False,
) -> None:
    """Fetch missing jars into the cache folder, and verify all of them.

    If spark and kafka are both among the sets, also archive their classes once, so that both start in half the time.
    """
    settings = Settings.load()
    for name in sets or local_jars.SETS:
        if name not in local_jars.SETS:
            raise TidemarkError(f"no jar set named {name}; the sets are {', '.join(local_jars.SETS)}")
        found = local_jars.ensure(name, settings)
        if paths:
            print("\n".join(str(path) for path in found))
    if {"spark", "kafka"} <= set(sets or local_jars.SETS):
        # Imports more than the output of paths needs.
        from tidemark.devstack.archives import ensure_archives

        ensure_archives(settings)
