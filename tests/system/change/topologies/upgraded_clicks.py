"""The next version of `rescaled_clicks`: the store of users has another name, and knows the newest click of each."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    topology = Topology("rescaled-clicks", version="2")
    clicks = topology.stream(
        "rescaled-in", schema="user_id STRING, page STRING, ts BIGINT", key="user_id", timestamp="ts"
    )
    by_user = clicks.group_by_key()
    by_user.aggregate(store="people", n="count(*)", newest="max(ts)").to("rescaled-users")
    minutes = by_user.windowed_by(tumbling("1m").grace("1d"))
    minutes.count(name="n", store="minutes", retention="2d").to("rescaled-minutes")
    clicks.group_by("page", name="by-page").count(name="n", store="pages").to("rescaled-pages")
    return topology
