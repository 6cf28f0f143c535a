"""Two equal repartitions and a table: what `optimised=True` is for."""

from __future__ import annotations

from tidemark.topology.builder import Topology


def topology() -> Topology:
    topology = Topology("measured", version="1")
    clicks = topology.stream("clicks", schema="user_id STRING, page STRING, ms INT", key="user_id")
    clicks.group_by("page", name="by-page").count(store="page-clicks").to("page-clicks")
    clicks.group_by("page", name="by-page-again").max("ms", store="page-slowest").to("page-slowest")
    users = topology.table("users", schema="user_id STRING, city STRING", key="user_id", store="users")
    clicks.join(users).to("clicks-with-city")
    return topology
