"""Shopping: purchases per customer in total, and per customer and day."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


def topology() -> Topology:
    """Compute the number and the value in cents of each customer's purchases, in total and per day (UTC)."""
    topology = Topology("shopping", version="1")
    purchases = topology.stream(
        "purchases",
        schema="customer_id STRING, item STRING, cents BIGINT, bought_ms BIGINT",
        key="customer_id",
        timestamp="bought_ms",
    ).filter("cents > 0")
    by_customer = purchases.group_by_key()
    by_customer.aggregate(purchases="count(*)", cents="sum(cents)", store="purchase-totals").to("purchase-totals")
    (
        by_customer.windowed_by(tumbling("1d").grace("1h"))
        .aggregate(purchases="count(*)", cents="sum(cents)", store="purchases-per-day", retention="7d")
        .to("purchases-per-day")
    )
    return topology
