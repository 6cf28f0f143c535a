"""The inputs that the cases share."""

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


def two_streams(topology: Topology) -> tuple[Stream, Stream]:
    """The left and the right stream of a case, with the columns `lv` and `rv`."""
    name = topology.application_id
    left = events(topology, f"{name}-left").select("id", "v AS lv")
    return left, events(topology, f"{name}-right").select("id", "v AS rv")


def two_tables(topology: Topology) -> tuple[Table, Table]:
    """The left and the right table of a case, with the columns `lv` and `rv`."""
    name = topology.application_id
    left = rows(topology, f"{name}-left").to_stream().select("id", "v AS lv").to_table()
    return left, rows(topology, f"{name}-right").to_stream().select("id", "v AS rv").to_table()


def stream_and_table(topology: Topology) -> tuple[Stream, Table]:
    """The stream and the table of a case, with the columns `lv` and `v`."""
    name = topology.application_id
    return events(topology, f"{name}-stream").select("id", "v AS lv"), rows(topology, f"{name}-table")
