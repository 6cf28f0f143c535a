"""Reads Kafka records through Spark between two offsets of each partition, read_committed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidemark.kafka.clients import spark_kafka_options
from tidemark.names import TopicPartition
from tidemark.settings import Settings

KAFKA_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source that statements use, for records that do not come from a broker."""

_READ_OPTIONS = {
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}


def read_between(
    spark: SparkSession,
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records from `starts` up to but excluding `ends`. Both name the same partitions.

    `options` override the usual ones.
    """
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
    """Return the options for bounded reads in one thread, each of which begins where the previous one ended.

    With a fixed `group`, Spark keeps the consumers and the records that they have fetched ahead. Without it, each read
    creates new consumers. The partitions are assigned and nothing is committed, so brokers see neither a member nor an offset
    of the group.
    """
    # If a range ends in transaction markers, the consumer waits this long for more records.
    return {"kafka.group.id": group, "kafka.fetch.max.wait.ms": "10"}


def assignment(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in the form that Spark's Kafka source expects: `{"topic": [0, 1]}`."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(found)


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets in the form that Spark's Kafka source expects: `{"topic": {"0": 23}}`."""
    found: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(found)
