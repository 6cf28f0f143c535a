"""Clicks: the number of clicks per page in hopping windows, and the sessions of each user."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.windows import hopping, session


def topology() -> Topology:
    """Build the topology. Clicks are keyed by user; counting them by page goes through a repartition topic."""
    topology = Topology("clicks", version="1")
    clicks = topology.stream(
        "clicks",
        schema="user_id STRING, page STRING, clicked_ms BIGINT",
        key="user_id",
        timestamp="clicked_ms",
    )
    (
        clicks.group_by("page", name="by-page")
        .windowed_by(hopping("5m", "1m").grace("30s"))
        .count(name="clicks", store="page-clicks", retention="6h")
        .to("page-clicks")
    )
    (
        clicks.group_by_key()
        .windowed_by(session("30m").grace("1m"))
        .count(name="clicks", store="user-sessions", retention="1d")
        .to("user-sessions")
    )
    return topology
