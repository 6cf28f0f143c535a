"""Records of Kafka through Spark, read_committed: as they come, or once between two offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession

from tidemark.broker.clients import spark_kafka_options
from tidemark.names import TopicPartition
from tidemark.settings import Settings

_READ_OPTIONS = {
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}


def as_they_come(spark: SparkSession, settings: Settings, options: Mapping[str, str]) -> DataFrame:
    """A streaming frame; `options` say of what, and from where."""
    reader = spark.readStream.format("kafka").options(**spark_kafka_options(settings))
    return reader.options(**_READ_OPTIONS).options(**options).load()


def read_between(
    spark: SparkSession,
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What lies from `starts` to before `ends`, both of the same partitions. `options` go before the usual ones."""
    return (
        spark.read.format("kafka")
        .options(**spark_kafka_options(settings))
        .options(**_READ_OPTIONS | dict(options or {}))
        .option("assign", assignment(ends))
        .option("startingOffsets", offsets_json(starts))
        .option("endingOffsets", offsets_json(ends))
        .load()
    )


def following(group: str) -> dict[str, str]:
    """Options of bounded reads each of which begins where the one before ended, in one thread.

    Under one fixed `group` Spark keeps the consumers and what they have fetched ahead; without, each read makes new ones. The
    partitions are assigned and nothing is committed, so brokers never see a member or an offset of it.
    """
    # Where a range ends in markers of transactions, the consumer waits that long for more.
    return {"kafka.group.id": group, "kafka.fetch.max.wait.ms": "10"}


def assignment(partitions: Iterable[TopicPartition]) -> str:
    """`{"topic": [0, 1]}`, as the Kafka source takes it."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(found)


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """`{"topic": {"0": 23}}`, as the Kafka source takes it."""
    found: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(found)
