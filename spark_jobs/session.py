"""The Spark session of an instance: on loopback unless configured, sized for small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.cluster import cluster_conf
from tidemark.broker.clients import java_system_properties
from tidemark.local.jars import ensure
from tidemark.local.spark_driver import driver_jvm_conf
from tidemark.settings import Settings

_QUIET = (
    # Its only warning is that it lets idle consumers go, which it does for every other batch with dead letters.
    "org.apache.spark.sql.kafka010.consumer.InternalKafkaConsumerPool",
    # Warns of every group id that is set, as members of one group would interfere. A bounded read has no member.
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings; as it was afterwards."""
    before = {name: spark.conf.get(name) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, known)  # type: ignore[arg-type]


def spark_session(settings: Settings, name: str) -> SparkSession:
    """Start Spark, or take what spark-submit started. Blocks for some seconds.

    Raises `PreflightFailed` where executors could not reach this driver.
    """
    system = java_system_properties(settings)
    jars = ensure("spark", settings)
    builder = SparkSession.builder.appName(name).master(settings.spark_master)
    conf = {
        **cluster_conf(settings),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.adaptive.enabled": "false",
        # A value that cannot be computed is null, as for a field that is missing; it must not stop the stream.
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.spark_shuffle_partitions),
        # Spark's list without Kafka: a bounded read then makes its rows as a stream does, and not each one twice over.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "50ms",
        # The default one starts a process (`readlink`) for every file that it touches, twenty and more per batch. What it
        # is better at, surviving a crash, is of no use here: every start has a fresh checkpoint.
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        # Hadoop sets the modes of what it makes by this, not by the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.sql.streaming.minBatchesToRetain": "2",
        # What a query has fetched and its consumers are kept for the query that goes on from there, for five minutes. A read
        # by itself, as for every batch with dead letters, has none that does: its records would fill the heap.
        **{
            f"spark.kafka.consumer.{cache}.{name}": seconds
            for cache in ("cache", "fetchedData.cache")
            for name, seconds in (("timeout", "10s"), ("evictorThreadRunInterval", "2s"))
        },
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.log.level": "WARN",
        # Spark's own expression and the option of Kafka clients that holds a password.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas",
        "spark.executor.extraJavaOptions": " ".join(f"-D{name}={value}" for name, value in system.items()),
        **settings.spark_extra_conf,
        **driver_jvm_conf(settings, jars),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    if secret := settings.spark_authenticate_secret.get_secret_value():
        # A JVM has the settings that it is started with on its command line, so this one comes after them.
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())))
        builder = builder.config("spark.authenticate.secret", secret)
    spark = builder.getOrCreate()
    for name, value in system.items():
        # The driver's JVM may have been started by spark-submit.
        spark._jvm.java.lang.System.setProperty(name, value)
    log4j = spark._jvm.org.apache.logging.log4j
    for logger in _QUIET:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
    return spark
