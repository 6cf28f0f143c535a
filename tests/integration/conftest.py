"""Fixtures that integration tests share with users of the test driver, and an Airflow without its processes.

There is one Spark session for all tests; it needs no broker.
"""

from __future__ import annotations

from spark_jobs.testing.fixtures import spark, topology_driver
from tests.support.airflow.operations import migrate_airflow, operations

__all__ = ["migrate_airflow", "operations", "spark", "topology_driver"]
