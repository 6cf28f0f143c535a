"""The input that all cases share."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.stream import Stream
from tidemark.topology.table import Table

SCHEMA = "id STRING, ts BIGINT, v INT"


def events(topology: Topology, topic: str) -> Stream:
    """A topic as a stream."""
    return topology.stream(topic, schema=SCHEMA, key="id", timestamp="ts")


def rows(topology: Topology, topic: str) -> Table:
    """A topic as a table."""
    return topology.table(topic, schema=SCHEMA, key="id", timestamp="ts")
