"""The fixtures of the test driver, as users have them: one Spark session for all tests, without a broker."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark, topology_driver

__all__ = ["spark", "topology_driver"]
