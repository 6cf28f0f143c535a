"""Fixtures that integration tests share with users of the test driver, and an Airflow without its processes.

There is one Spark session for all tests; it needs no broker.
"""

from __future__ import annotations

import pytest
from spark_jobs.testing.fixtures import spark, topology_driver
from tests.support.airflow.operations import migrate_airflow, operations

__all__ = ["migrate_airflow", "operations", "spark", "topology_driver"]


@pytest.fixture
def known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a question for the ids of topics, one of which was deleted, take 0.2 s instead of two.

    It waits because another broker may have created the topic a moment ago. The broker of the session is the only one, and
    whatever creates a topic waits until this broker shows it.
    """
    monkeypatch.setattr("tidemark.kafka.cluster._KNOWN_EVERYWHERE_S", 0.2)
