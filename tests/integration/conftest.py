"""The fixtures that users of the test driver have, too: one Spark session for all tests; it needs no broker."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark, topology_driver

__all__ = ["spark", "topology_driver"]
