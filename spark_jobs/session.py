"""The Spark session of an instance: on loopback, sized for small batches."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.local.jars import ensure
from tidemark.settings import Settings


def spark_session(settings: Settings, name: str) -> SparkSession:
    """Start Spark, or take what spark-submit started. Blocks for some seconds."""
    builder = SparkSession.builder.appName(name).master(settings.spark_master)
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(str(jar) for jar in ensure("spark", settings)),
        "spark.sql.adaptive.enabled": "false",
        # A value that cannot be computed is null, as for a field that is missing; it must not stop the stream.
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.spark_shuffle_partitions),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.log.level": "WARN",
        **settings.spark_extra_conf,
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
