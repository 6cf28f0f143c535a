"""The Spark session of an instance: on loopback unless configured otherwise, and tuned for small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.cluster import cluster_conf
from tidemark.kafka.clients import java_system_properties
from tidemark.kafka.jars import ensure
from tidemark.settings import Settings
from tidemark.settings_names import SECRET_NAME, is_secret_name
from tidemark.spark_driver import driver_jvm_conf, executor_jars_conf

_QUIET = (
    # It only warns that it closes idle consumers, which happens for every second batch with dead letters.
    "org.apache.spark.sql.kafka010.consumer.InternalKafkaConsumerPool",
    # It warns about every group id that is set, because members of one group would interfere. A bounded read has no member.
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)


_AVRO_LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": str(64 << 20),
    "org.apache.avro.limits.string.maxLength": str(64 << 20),
    "org.apache.avro.limits.collectionItems.maxLength": str(16 << 20),
}
"""Avro makes room for as much as a record says that it has. A broken record can say anything; beyond these it is refused."""


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session inside the block and restore them afterwards."""
    before = {name: spark.conf.get(name) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, known)  # type: ignore[arg-type]


def spark_session(settings: Settings, name: str) -> SparkSession:
    """Start Spark, or use the JVM that spark-submit started. Blocks for some seconds.

    Raises `PreflightFailed` if executors could not reach this driver.
    """
    system = {**java_system_properties(settings), **_AVRO_LIMITS}
    jars = ensure("spark", settings)
    builder = SparkSession.builder.appName(name).master(settings.spark_master)
    conf = {
        **cluster_conf(settings),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **executor_jars_conf(settings.spark_master, jars),
        "spark.sql.adaptive.enabled": "false",
        # Most values that cannot be computed become null, like a missing field. Where Spark raises nevertheless, the record
        # becomes a dead letter.
        "spark.sql.ansi.enabled": "false",
        # Otherwise Spark ends the JVM in which a task has overflowed its stack, or is out of memory, instead of reporting which
        # job has failed. If a task is out of memory, an executor of a cluster still ends, and a smaller batch is tried.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.spark_shuffle_partitions),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        # Hadoop sets file modes by this setting, not by the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        # By default, consumers and the records that they have fetched are kept for five minutes for a read that continues
        # from there. None continues after the separate read of dead letters, so its records would fill the heap.
        **{
            f"spark.kafka.consumer.{cache}.{name}": seconds
            for cache in ("cache", "fetchedData.cache")
            for name, seconds in (("timeout", "10s"), ("evictorThreadRunInterval", "2s"))
        },
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # Where tasks run in this process, a result is handed over as it is. By default one of more than 1 MB goes through
        # the block manager and a connection. Remote executors keep the default, which protects the heap of the driver.
        **({"spark.task.maxDirectResultSize": "64m"} if settings.spark_master.startswith("local") else {}),
        # Spark keeps what its web page would show in the heap, even without the page: by default the last thousand of each.
        **{f"spark.ui.retained{what}": "20" for what in ("Jobs", "Stages", "Tasks", "DeadExecutors")},
        "spark.sql.ui.retainedExecutions": "20",
        "spark.log.level": "WARN",
        "spark.redaction.regex": SECRET_NAME,
        "spark.executor.extraJavaOptions": " ".join(
            ["-XX:+ExitOnOutOfMemoryError", *(f"-D{name}={value}" for name, value in system.items())]
        ),
        **settings.spark_extra_conf,
        **driver_jvm_conf(settings, jars),
    }
    # The settings with which a JVM is started are on its command line, so secrets are set after the start.
    public = {name: value for name, value in conf.items() if not is_secret_name(name)}
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(public.items())))
    for key, value in conf.items():
        builder = builder.config(key, value)
    if secret := settings.spark_authenticate_secret.get_secret_value():
        builder = builder.config("spark.authenticate.secret", secret)
    spark = builder.getOrCreate()
    jvm: Any = spark._jvm
    for name, value in system.items():
        # Set here, because spark-submit may have started the driver's JVM.
        jvm.java.lang.System.setProperty(name, value)
    log4j = jvm.org.apache.logging.log4j
    for logger in _QUIET:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
    return spark
