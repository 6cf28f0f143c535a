"""Archives the classes of a Spark driver: `class_data.py ARCHIVE`.

It reads the topics of a topology, in several batches and in one, and ends. It uses the brokers of the settings and creates the
topics there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# So that it runs by its path, with spark-submit and with plain Python.
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from spark_jobs.batch_source import SparkBatchSource
from spark_jobs.session import spark_session
from tidemark.atomic_file import keep_files_private
from tidemark.errors import OutcomeUnknown
from tidemark.instance.transaction_capacity import BatchSize
from tidemark.kafka import class_data
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import ensure_user_topics, partition_counts
from tidemark.names import TopicPartition
from tidemark.parent_death import end_with_caller
from tidemark.settings import Settings
from tidemark.topology_loader import load

TOPOLOGY = "patient_monitoring"
_RECORDS = 100
_WAIT_S = 600.0


def main(arguments: list[str]) -> int:
    """Read as an instance does, let the JVM write the archive when it ends, and return the JVM's exit code."""
    keep_files_private()
    end_with_caller()
    (archive,) = arguments
    options = " ".join(class_data.archiving_options(Path(archive)))
    settings = Settings.load(spark_extra_conf={"spark.driver.extraJavaOptions": options})
    plan = load(TOPOLOGY).plan()
    admin = AdminClient(librdkafka_config(settings))
    ensure_user_topics(plan, settings, admin)
    counts = partition_counts(admin, settings)
    sources = [topic for subtopology in plan.subtopologies for topic in subtopology.source_topics]
    starts = {TopicPartition(topic, p): 0 for topic in sources for p in range(counts[topic])}
    spark = spark_session(settings, "class-data")
    gateway: Any = spark.sparkContext._gateway
    source = SparkBatchSource(spark, plan, settings, 0)
    # These records are more than a batch may contain, the later ones are less.
    _produce(settings, plan.subtopologies[0].lead.topic, _RECORDS)
    source.start(starts, BatchSize(_RECORDS // 4))
    _take(source, _RECORDS)
    _produce(settings, plan.subtopologies[0].lead.topic, _RECORDS // 10)
    _take(source, _RECORDS // 10)
    source.stop()
    spark.stop()
    # The JVM ends when its standard input does, and writes the archive then.
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


def _produce(settings: Settings, topic: str, records: int) -> None:
    producer = Producer(librdkafka_config(settings))
    now_ms = int(time.time() * 1000)
    for number in range(records):
        value = f'{{"patient_id":"p{number}","beat_ms":{now_ms},"ibi_ms":800,"recording":"r"}}'
        # One record in an unusual form, and one that cannot be parsed.
        value = {0: value.replace(",", " , "), 1: "{broken"}.get(number, value)
        producer.produce(topic, key=f"p{number}", value=value)
    producer.flush(_WAIT_S)


def _take(source: SparkBatchSource, records: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while records > 0:
        batch = source.next(1.0)
        if batch is not None:
            records -= sum(end - batch.starts[place] for place, end in batch.ends.items())
        elif time.monotonic() > deadline:
            raise OutcomeUnknown("Spark has read no records for a minute")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # The thread that waits for the end of the caller holds the standard input, which a normal exit would try to close.
    os._exit(code)
