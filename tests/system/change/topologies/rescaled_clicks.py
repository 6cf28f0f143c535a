"""Clicks counted by user, by user and minute, and by page behind a re-key; the grace is long, so nothing is ever late."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    topology = Topology("rescaled-clicks", version="1")
    clicks = topology.stream(
        "rescaled-in", schema="user_id STRING, page STRING, ts BIGINT", key="user_id", timestamp="ts"
    )
    by_user = clicks.group_by_key()
    by_user.count(name="n", store="users").to("rescaled-users")
    minutes = by_user.windowed_by(tumbling("1m").grace("1d"))
    minutes.count(name="n", store="minutes", retention="2d").to("rescaled-minutes")
    clicks.group_by("page", name="by-page").count(name="n", store="pages").to("rescaled-pages")
    return topology
