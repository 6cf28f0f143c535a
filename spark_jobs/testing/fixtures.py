"""pytest fixtures for topologies: add `pytest_plugins = ["spark_jobs.testing.fixtures"]` to your conftest.

`topology_driver(topology)` returns a `TopologyTestDriver`, which is closed at the end of the test. All drivers share one
Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.testing.topology_test_driver import TopologyTestDriver
from tidemark.settings import Settings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start one local Spark session for the whole test run."""
    settings = Settings.load(spark_driver_memory="1g", spark_master="local[2]", spark_shuffle_partitions=1)
    session = spark_session(settings, "tests")
    yield session
    session.stop()


@pytest.fixture
def topology_driver(spark: SparkSession) -> Iterator[Callable[..., TopologyTestDriver]]:
    """Return a function that creates drivers: `topology_driver(topology, partitions=2)`."""
    with ExitStack() as opened:
        yield lambda topology, **options: opened.enter_context(TopologyTestDriver(topology, spark, **options))
