"""The Spark session of the recomputation, which needs no broker, and applications whose changelogs tests write by hand."""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark
from tests.integration.standby.conftest import counting, windowed

__all__ = ["counting", "spark", "windowed"]
