"""The Spark session of the recomputation; it needs no broker."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark

__all__ = ["spark"]
