"""pytest fixtures for topologies: put `pytest_plugins = ["spark_jobs.testing"]` into your conftest.

`topology_driver(topology)` gives a `TopologyTestDriver` that is closed at the test's end; all share one Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.test_driver import TopologyTestDriver
from tidemark.settings import Settings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session for the whole run."""
    settings = Settings.load(spark_driver_memory="512m", spark_master="local[2]", spark_shuffle_partitions=1)
    session = spark_session(settings, "tests")
    yield session
    session.stop()


@pytest.fixture
def topology_driver(spark: SparkSession) -> Iterator[Callable[..., TopologyTestDriver]]:
    """Makes drivers: `topology_driver(topology, partitions=2)`."""
    with ExitStack() as opened:
        yield lambda topology, **options: opened.enter_context(TopologyTestDriver(topology, spark, **options))
