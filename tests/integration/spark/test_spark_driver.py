"""The JVM of a Spark driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.kafka import class_data


@pytest.mark.spark
def test_should_map_the_archived_classes(spark: SparkSession, spark_jars: list[Path]) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    assert str(class_data.spark_archive(spark_jars)) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
