"""The audit's tests share one matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.audit.matrix import Matrix, fast

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.settings import Settings


@pytest.fixture(scope="module")
def matrix(
    broker: EmbeddedBroker,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Matrix]:
    """Runs and audits applications at the session's broker."""
    folder = tmp_path_factory.mktemp("audit")
    settings = Settings.load(
        bootstrap_servers=broker.bootstrap,
        var_dir=folder / "var",
        state_dir=folder / "state",
        audit_time_share=1.0,
    )
    with fast(spark):
        yield Matrix(settings, spark)
