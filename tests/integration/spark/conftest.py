"""The Spark session that users of the test driver have, too; it needs no broker."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark

__all__ = ["spark"]
