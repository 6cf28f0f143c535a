"""One Spark session for the suite; it needs no broker."""

from __future__ import annotations

import pytest
from spark_jobs.session import spark_session

from tidemark.settings import Settings


@pytest.fixture(scope="session")
def spark(spark_jars):
    session = spark_session(Settings.load(spark_driver_memory="512m", spark_master="local[2]"), "tests")
    yield session
    session.stop()
