"""One JVM with Kafka Streams' TopologyTestDriver for all tests, and the Spark session that users of the test driver have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from spark_jobs.testing.fixtures import spark
from tests.system.fuzz.java_side import JavaSide

from tidemark.settings import Settings

__all__ = ["java", "spark"]


@pytest.fixture(scope="session")
def java() -> Iterator[JavaSide]:
    """Answers cases until the end of the session."""
    with JavaSide(Settings.load()) as side:
        yield side
