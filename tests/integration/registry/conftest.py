"""The fixtures that users of the test driver have, too."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark, topology_driver

__all__ = ["spark", "topology_driver"]
