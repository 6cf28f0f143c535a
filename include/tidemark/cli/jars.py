"""Fetch and verify the jars that are not part of pyspark."""

from __future__ import annotations

import typer

from tidemark.cli.output import Output, Verbatim
from tidemark.kafka import jars as local_jars
from tidemark.settings import Settings


def fetch_jars(sets: list[str] | None, output: Output, *, paths: bool) -> None:
    """Fetch and verify the jars of these sets, or of all, and print their paths if asked. Blocks.

    Raises a usage error for a set that does not exist.
    """
    settings = Settings.load()
    found = {}
    for name in sets or local_jars.SETS:
        if name not in local_jars.SETS:
            raise typer.BadParameter(f"no jar set named {name}; the sets are {', '.join(local_jars.SETS)}")
        found[name] = local_jars.ensure(name, settings)
    output.show(found, *(Verbatim(path) for jars in found.values() for path in jars if paths))
    if {"spark", "kafka"} <= found.keys():
        # Imports more than the output of paths needs.
        from rich.console import Console

        from tidemark.devstack import archives

        if archives.is_archive_missing(settings):
            with Console(stderr=True).status(archives.WORK):
                archives.make_archives(settings)
