"""Fetch and verify the jars that are not part of pyspark."""

from __future__ import annotations

from tidemark.devstack.archives import ensure_archives
from tidemark.errors import TidemarkError
from tidemark.kafka import jars as local_jars
from tidemark.settings import Settings


def fetch_jars(sets: list[str] | None, *, paths: bool) -> None:
    """Fetch and verify the jars of these sets, or of all, and print their paths if asked. Blocks."""
    settings = Settings.load()
    for name in sets or local_jars.SETS:
        if name not in local_jars.SETS:
            raise TidemarkError(f"no jar set named {name}; the sets are {', '.join(local_jars.SETS)}")
        found = local_jars.ensure(name, settings)
        if paths:
            print("\n".join(str(path) for path in found))
    if {"spark", "kafka"} <= set(sets or local_jars.SETS):
        ensure_archives(settings)
